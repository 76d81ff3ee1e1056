// AVX-VNNI: vpdpbusd on 256 bits. SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "int8.h"

namespace infeng_bench {
namespace {

constexpr int kSums = 12;  // two a cycle with a latency of five need ten

uint64_t run(uint64_t iterations) {
  __m256i x = _mm256_set1_epi8(3), w = _mm256_set1_epi8(5), sums[kSums] = {};
  for (uint64_t i = 0; i < iterations; ++i) {
    asm volatile("" : "+x"(x), "+x"(w));
#pragma GCC unroll 12
    for (int s = 0; s < kSums; ++s) sums[s] = _mm256_dpbusd_avx_epi32(sums[s], w, x);
  }
  for (int s = 1; s < kSums; ++s) sums[0] = _mm256_add_epi32(sums[0], sums[s]);
  return static_cast<uint64_t>(_mm256_extract_epi64(sums[0], 0));
}

}  // namespace

const Int8Loop int8_avx_vnni = {"avx_vnni", 32 * kSums, run};

}  // namespace infeng_bench
