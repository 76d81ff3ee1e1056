// Sleeping on a 32-bit word until another thread changes it.
#pragma once

#include <atomic>
#include <climits>
#include <cstdint>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace infeng {

// Returns when the word differs from `seen`, or spuriously: call it in a loop.
inline void futex_wait(std::atomic<uint32_t>& word, uint32_t seen) {
#if defined(__linux__)
  static_assert(sizeof(word) == 4);
  (void)syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
#else
  word.wait(seen);
#endif
}

inline void futex_wake_all(std::atomic<uint32_t>& word) {
#if defined(__linux__)
  (void)syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
#else
  word.notify_all();
#endif
}

// Hints to the processor that this is a spin loop, which saves power and yields to the other hardware thread.
inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("isb");
#endif
}

}  // namespace infeng
