// The int8 peak: multiplications in registers, on several threads at once. SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "int8_loops.h"
#include "probe.h"

using namespace infeng_bench;

// Name of the instruction set of loop `index`, or NULL past the last.
INFENG_BENCH_EXPORT const char* infeng_bench_int8_isa(int index) {
  for (int i = 0; int8_loops[i].isa; ++i)
    if (i == index) return int8_loops[i].isa;
  return nullptr;
}

// Multiply-adds per second of all threads together over about `seconds`; 0 for an unknown instruction set. The caller
// must have checked that the processor supports it.
INFENG_BENCH_EXPORT double infeng_bench_int8(const char* isa, int threads, double seconds) {
  const Int8Loop* loop = int8_loops;
  while (loop->isa && std::strcmp(loop->isa, isa)) ++loop;
  if (!loop->isa) return 0;
  std::vector<double> rates(static_cast<size_t>(threads));
  on_threads(threads, [&](int index) {
    constexpr uint64_t kIterations = 2000;
    loop->run(kIterations);  // warms up the vector units and the clock
    const auto start = Clock::now();
    double passed = 0;
    uint64_t done = 0;
    while (passed < seconds) {
      loop->run(kIterations);
      done += kIterations;
      passed = seconds_since(start);
    }
    rates[static_cast<size_t>(index)] = static_cast<double>(done * loop->macs) / passed;
  });
  double all = 0;
  for (double rate : rates) all += rate;
  return all;
}
