// The sub-scales and dots of ops/linear_affine.h for AVX2.
// SPDX-License-Identifier: Apache-2.0
#ifndef INFENG_SIMD_AFFINE_AVX2_H
#define INFENG_SIMD_AFFINE_AVX2_H

#include <infeng/simd/avx2.h>

namespace infeng::avx2 {
namespace {

struct AffineBytes : Base {
  // Byte `at` of every output in a line of sub-scales.
  static INFENG_INLINE I integers(const uint8_t* line, int at) {
    const __m256i byte = _mm256_set1_epi32(255);
    return {_mm256_and_si256(_mm256_srli_epi32(half(line, 0), 8 * at), byte),
            _mm256_and_si256(_mm256_srli_epi32(half(line, 1), 8 * at), byte)};
  }
  static INFENG_INLINE F take(const uint8_t* line, int at) { return to_float(integers(line, at)); }
};

// Without VNNI, the instruction that widens pairs of products also multiplies them by the sub-scale at no cost: by (s,
// s) instead of (1, 1). Eight pairs of units are at most 30480, so sums over 32 k of an output stay in int16.
struct AffineDots : Avx2 {
  using Vectors = Avx2;
  static constexpr int kRows = 4;
  static constexpr int kBlockRows = 4;

  struct alignas(kLine) Scales {
    int16_t s[2][2 * kLanes];  // of the first and the last 32 k, twice for each output
    float t[2][kLanes];
  };
  static INFENG_INLINE void read(const uint8_t* line, Scales& out) {
    INFENG_EACH (h, 2) {
      const I s = AffineBytes::integers(line, h);
      _mm256_store_si256((__m256i*)out.s[h], _mm256_or_si256(s.a, _mm256_slli_epi32(s.a, 16)));
      _mm256_store_si256((__m256i*)out.s[h] + 1, _mm256_or_si256(s.b, _mm256_slli_epi32(s.b, 16)));
      store(out.t[h], AffineBytes::take(line, 2 + h));
    }
  }

  template <int M, int P, class Each>
  static INFENG_INLINE void packed(F (&acc)[M][P], const uint8_t* const (&w)[P], const Scales* const (&scales)[P],
                                   const int8_t* const (&x)[M], const Each& each) {
    INFENG_EACH (p, P)
      dot<M>([&](int m) INFENG_INLINE_LAMBDA -> F& { return acc[m][p]; }, *scales[p], x,
             [&](int l, int i) INFENG_INLINE_LAMBDA {
               const int at = 16 * p + l;
               if (i == 0 && at % (2 * P) == 0) each(at / (2 * P));
               const __m256i v = half(w[p] + (l / 8 * 4 + l % 4) * kLine, i);
               return low_nibbles(l % 8 < 4 ? v : _mm256_srli_epi16(v, 4));
             });
  }
  template <int M, int P, class Each>
  static INFENG_INLINE void unpacked(F (&acc)[M][P], const uint8_t* const (&w)[P], const Scales* const (&scales)[P],
                                     const int8_t* const (&x)[M], const Each& each) {
    INFENG_EACH (p, P)
      dot<M>([&](int m) INFENG_INLINE_LAMBDA -> F& { return acc[m][p]; }, *scales[p], x,
             [&](int l, int i) INFENG_INLINE_LAMBDA {
               if (i == 0) spread<P>(p, 16, l, each);
               return half(w[p] + l * kLine, i);
             });
  }

 private:
  // acc(m): the sum over 64 k of x[m] times units times their sub-scales; line(l, i) is half i of line l.
  template <int M, class Acc, class Line>
  static INFENG_INLINE void dot(const Acc& acc, const Scales& scales, const int8_t* const (&x)[M], const Line& line) {
    I sums[M];
    INFENG_EACH (h, 2) {
      __m256i pairs[M][2];
      INFENG_EACH (m, M) pairs[m][0] = pairs[m][1] = _mm256_setzero_si256();
      INFENG_EACH (i, 8) {
        const int l = 8 * h + i;
        add_pairs(pairs, line(l, 0), line(l, 1), x, l);
      }
      const __m256i* s = (const __m256i*)scales.s[h];
      INFENG_EACH (m, M) {
        const I scaled = {_mm256_madd_epi16(pairs[m][0], _mm256_load_si256(s)),
                          _mm256_madd_epi16(pairs[m][1], _mm256_load_si256(s + 1))};
        sums[m] = h == 0 ? scaled : iadd(sums[m], scaled);
      }
    }
    INFENG_EACH (m, M) acc(m) = to_float(sums[m]);
  }
};

}  // namespace
}  // namespace infeng::avx2
#endif  // INFENG_SIMD_AFFINE_AVX2_H
