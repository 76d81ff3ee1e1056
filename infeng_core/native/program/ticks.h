// Cheap readings of time: the processor's counter if its rate is constant, else the steady clock.
//
// Reading the clock takes 25 ns and waits for all earlier instructions; reading the counter takes half of that and
// waits for none. Two readings of both convert ticks to nanoseconds afterwards.
#pragma once

#include <time.h>

#include <cmath>
#include <cstdint>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace infeng {

inline int64_t steady_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1000000000 + now.tv_nsec;
}

// CPUID 8000_0007, EDX bit 8: the counter never stops or changes its rate (Intel SDM vol. 3, 18.17.1).
inline bool has_steady_counter() {
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(0x80000007, &a, &b, &c, &d) != 0 && (d & 1u << 8) != 0;
#else
  return false;
#endif
}

inline const bool kSteadyCounter = has_steady_counter();

inline int64_t ticks() {
#if defined(__x86_64__)
  if (kSteadyCounter) return static_cast<int64_t>(__builtin_ia32_rdtsc());
#endif
  return steady_ns();
}

// Converts ticks to nanoseconds of the steady clock. The scale follows from `origin`, an earlier moment, and now.
class TickScale {
 public:
  struct Moment {
    int64_t ticks = infeng::ticks();
    int64_t ns = steady_ns();
  };

  explicit TickScale(const Moment& origin) : origin_(origin) {
    const Moment now;
    if (now.ticks > origin.ticks) ns_ = static_cast<double>(now.ns - origin.ns) / (now.ticks - origin.ticks);
  }
  int64_t span(int64_t ticks) const { return std::llround(static_cast<double>(ticks) * ns_); }
  int64_t at(int64_t ticks) const { return origin_.ns + span(ticks - origin_.ticks); }

 private:
  Moment origin_;
  double ns_ = 1;  // per tick
};

}  // namespace infeng
