// What ops/linear_affine.h reads, for AVX-512. SPDX-License-Identifier: Apache-2.0
#ifndef INFENG_SIMD_AFFINE_AVX512_H
#define INFENG_SIMD_AFFINE_AVX512_H

#include <infeng/simd/avx512.h>

namespace infeng::avx512 {
namespace {

struct AffineBytes : Base {
  // Byte `at` of every output in a line of sub-scales, widened.
  static INFENG_INLINE F take(const uint8_t* line, int at) {
    const __m512i shifted = _mm512_srli_epi32(_mm512_loadu_si512(line), 8 * at);
    return _mm512_cvtepi32_ps(_mm512_and_si512(shifted, _mm512_set1_epi32(255)));
  }
};

}  // namespace
}  // namespace infeng::avx512
#endif  // INFENG_SIMD_AFFINE_AVX512_H
