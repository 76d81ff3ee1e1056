// The floating-point mode of docs/numerics.md: round to nearest even, subnormals on, exceptions masked.
#pragma once

#include <cstdint>

#if defined(__x86_64__) || defined(__i386__)
#include <xmmintrin.h>
#endif

namespace infeng {

#if defined(__x86_64__) || defined(__i386__)
using FpState = uint32_t;
inline FpState fp_read() { return _mm_getcsr(); }
inline void fp_write(FpState state) { _mm_setcsr(state); }
inline constexpr FpState kFpContract = 0x1F80;
#elif defined(__aarch64__)
using FpState = uint64_t;
inline FpState fp_read() {
  FpState state;
  __asm__ volatile("mrs %0, fpcr" : "=r"(state));
  return state;
}
inline void fp_write(FpState state) { __asm__ volatile("msr fpcr, %0" : : "r"(state)); }
inline constexpr FpState kFpContract = 0;
#else
using FpState = uint32_t;
inline FpState fp_read() { return 0; }
inline void fp_write(FpState) {}
inline constexpr FpState kFpContract = 0;
#endif

// Restores the caller's mode at the end of the scope: dlopen changes it for a library with fast-math start-up code.
class FpGuard {
 public:
  FpGuard() : saved_(fp_read()) {}
  ~FpGuard() { fp_write(saved_); }
  FpGuard(const FpGuard&) = delete;
  FpGuard& operator=(const FpGuard&) = delete;

 private:
  FpState saved_;
};

}  // namespace infeng
