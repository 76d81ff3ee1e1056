// The core clock, from a chain of dependent additions: every core does exactly one per cycle.
// SPDX-License-Identifier: Apache-2.0
#include "probe.h"

namespace {

// 64 dependent additions. The operands are registers, since some cores fold small constants while renaming.
inline uint64_t chain(uint64_t value, uint64_t step) {
#if defined(__x86_64__)
#define ADD4 "add %1, %0\n\tadd %1, %0\n\tadd %1, %0\n\tadd %1, %0\n\t"
#elif defined(__aarch64__)
#define ADD4 "add %0, %0, %1\n\tadd %0, %0, %1\n\tadd %0, %0, %1\n\tadd %0, %0, %1\n\t"
#else
#error "write the chain of additions for this architecture"
#endif
#define ADD16 ADD4 ADD4 ADD4 ADD4
  asm volatile(ADD16 ADD16 ADD16 ADD16 : "+r"(value) : "r"(step));
  return value;
}

volatile uint64_t sink;

}  // namespace

// Cycles per second of the calling thread over about `seconds`.
INFENG_BENCH_EXPORT double infeng_bench_clock(double seconds) {
  constexpr uint64_t kBlock = 4096;
  uint64_t value = 1, blocks = 0;
  const auto start = infeng_bench::Clock::now();
  double passed = 0;
  while (passed < seconds) {
    for (uint64_t i = 0; i < kBlock; ++i) value = chain(value, i | 1);
    ++blocks;
    passed = infeng_bench::seconds_since(start);
  }
  sink = value;
  return static_cast<double>(blocks * kBlock * 64) / passed;
}
