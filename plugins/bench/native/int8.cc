// The int8 peak: multiplications of registers, on several threads at once. SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "int8.h"
#include "probe.h"

namespace {

using namespace infeng_bench;

const Int8Loop* const kLoops[] = {
#ifdef HAS_AVX2
    &int8_avx2,
#endif
#ifdef HAS_AVX_VNNI
    &int8_avx_vnni,
#endif
#ifdef HAS_AVX512BW
    &int8_avx512bw,
#endif
#ifdef HAS_AVX512_VNNI
    &int8_avx512_vnni,
#endif
#ifdef HAS_AMX_INT8
    &int8_amx_int8,
#endif
    nullptr};

volatile uint64_t sink;

}  // namespace

// Name of instruction set `index` for which there is a loop, or NULL past the last.
INFENG_BENCH_EXPORT const char* infeng_bench_int8_isa(int index) {
  for (int i = 0; kLoops[i]; ++i)
    if (i == index) return kLoops[i]->isa;
  return nullptr;
}

// Multiplications (with their additions) per second of all threads together over about `seconds`; 0 for an unknown
// instruction set. The caller must know that the processor has it.
INFENG_BENCH_EXPORT double infeng_bench_int8(const char* isa, int threads, double seconds) {
  const Int8Loop* loop = nullptr;
  for (int i = 0; kLoops[i]; ++i)
    if (!std::strcmp(kLoops[i]->isa, isa)) loop = kLoops[i];
  if (!loop) return 0;
  std::vector<double> rates(static_cast<size_t>(threads));
  on_threads(threads, [&](int index) {
    constexpr uint64_t kIterations = 2000;
    sink = loop->run(kIterations);  // the unit wakes up, the clock settles
    const auto start = Clock::now();
    double passed = 0;
    uint64_t done = 0;
    while (passed < seconds) {
      sink = loop->run(kIterations);
      done += kIterations;
      passed = seconds_since(start);
    }
    rates[static_cast<size_t>(index)] = static_cast<double>(done * loop->macs) / passed;
  });
  double all = 0;
  for (double rate : rates) all += rate;
  return all;
}
