// AVX2: eight vpmaddubsw are added in 16 bits before they are widened, the cheapest way that cannot overflow for int4
// weights (8 * 2 * 15 * 127 < 2^15). SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "int8.h"

namespace infeng_bench {
namespace {

constexpr int kSums = 8, kDepth = 8;

uint64_t run(uint64_t iterations) {
  __m256i x = _mm256_set1_epi8(3), w = _mm256_set1_epi8(5);
  const __m256i ones = _mm256_set1_epi16(1);
  __m256i wide[2] = {};
  for (uint64_t i = 0; i < iterations; ++i) {
    __m256i sums[kSums];
    for (int d = 0; d < kDepth; ++d) {
#pragma GCC unroll 8
      for (int s = 0; s < kSums; ++s) {
        asm volatile("" : "+x"(x));  // unknown to the compiler: the product must be computed each time
        const __m256i product = _mm256_maddubs_epi16(w, x);
        sums[s] = d ? _mm256_add_epi16(sums[s], product) : product;
      }
    }
#pragma GCC unroll 8
    for (int s = 0; s < kSums; ++s) wide[s & 1] = _mm256_add_epi32(wide[s & 1], _mm256_madd_epi16(sums[s], ones));
  }
  return static_cast<uint64_t>(_mm256_extract_epi64(_mm256_add_epi32(wide[0], wide[1]), 0));
}

}  // namespace

const Int8Loop int8_avx2 = {"avx2", 32 * kSums* kDepth, run};

}  // namespace infeng_bench
