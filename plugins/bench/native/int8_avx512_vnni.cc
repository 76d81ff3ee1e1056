// AVX-512 VNNI: vpdpbusd on 512 bits. SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "int8.h"

namespace infeng_bench {
namespace {

constexpr int kSums = 24;  // as many as an inner loop keeps

uint64_t run(uint64_t iterations) {
  __m512i x = _mm512_set1_epi8(3), w = _mm512_set1_epi8(5), sums[kSums] = {};
  for (uint64_t i = 0; i < iterations; ++i) {
    asm volatile("" : "+v"(x), "+v"(w));
#pragma GCC unroll 24
    for (int s = 0; s < kSums; ++s) sums[s] = _mm512_dpbusd_epi32(sums[s], w, x);
  }
  for (int s = 1; s < kSums; ++s) sums[0] = _mm512_add_epi32(sums[0], sums[s]);
  return static_cast<uint64_t>(_mm512_reduce_add_epi64(sums[0]));
}

}  // namespace

const Int8Loop int8_avx512_vnni = {"avx512_vnni", 64 * kSums, run};

}  // namespace infeng_bench
