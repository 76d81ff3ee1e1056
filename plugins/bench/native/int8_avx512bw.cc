// AVX-512 without VNNI: as AVX2, on 512 bits. SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "int8.h"

namespace infeng_bench {
namespace {

constexpr int kSums = 16, kDepth = 8;

uint64_t run(uint64_t iterations) {
  __m512i x = _mm512_set1_epi8(3), w = _mm512_set1_epi8(5);
  const __m512i ones = _mm512_set1_epi16(1);
  __m512i wide[4] = {};
  for (uint64_t i = 0; i < iterations; ++i) {
    __m512i sums[kSums];
    for (int d = 0; d < kDepth; ++d) {
#pragma GCC unroll 16
      for (int s = 0; s < kSums; ++s) {
        asm volatile("" : "+v"(x));  // unknown to the compiler: the product must be computed each time
        const __m512i product = _mm512_maddubs_epi16(w, x);
        sums[s] = d ? _mm512_add_epi16(sums[s], product) : product;
      }
    }
#pragma GCC unroll 16
    for (int s = 0; s < kSums; ++s) wide[s & 3] = _mm512_add_epi32(wide[s & 3], _mm512_madd_epi16(sums[s], ones));
  }
  for (int s = 1; s < 4; ++s) wide[0] = _mm512_add_epi32(wide[0], wide[s]);
  return static_cast<uint64_t>(_mm512_reduce_add_epi64(wide[0]));
}

}  // namespace

const Int8Loop int8_avx512bw = {"avx512bw", 64 * kSums* kDepth, run};

}  // namespace infeng_bench
