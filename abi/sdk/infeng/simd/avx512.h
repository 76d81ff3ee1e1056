// AVX-512 backends of the vocabulary in vec.h: `Bw` needs F, BW, VL and DQ; `Vnni` also AVX512_VNNI; `Gfni` also GFNI.
// SPDX-License-Identifier: Apache-2.0
#ifndef INFENG_SIMD_AVX512_H
#define INFENG_SIMD_AVX512_H

#include <immintrin.h>
#include <infeng/simd/vec.h>

namespace infeng::avx512 {
namespace {

struct Base {
  using F = __m512;
  using I = __m512i;
  static constexpr int kColumns = 4;

  static INFENG_INLINE __mmask16 lanes(int n) {
    return n >= kLanes ? __mmask16(0xffff) : n <= 0 ? __mmask16(0) : __mmask16((1u << n) - 1);
  }
  static INFENG_INLINE F zero() { return _mm512_setzero_ps(); }
  static INFENG_INLINE F set(float s) { return _mm512_set1_ps(s); }
  static INFENG_INLINE F load(const float* x) { return _mm512_loadu_ps(x); }
  static INFENG_INLINE F load(const float* x, int n) { return _mm512_maskz_loadu_ps(lanes(n), x); }
  static INFENG_INLINE void store(float* y, F f) { _mm512_storeu_ps(y, f); }
  static INFENG_INLINE void store(float* y, F f, int n) { _mm512_mask_storeu_ps(y, lanes(n), f); }
  static INFENG_INLINE F add(F a, F b) { return _mm512_add_ps(a, b); }
  static INFENG_INLINE F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static INFENG_INLINE F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static INFENG_INLINE F div(F a, F b) { return _mm512_div_ps(a, b); }
  static INFENG_INLINE F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static INFENG_INLINE F fms(F a, F b, F c) { return _mm512_fmsub_ps(a, b, c); }
  static INFENG_INLINE F min(F a, F b) { return _mm512_min_ps(a, b); }
  static INFENG_INLINE F max(F a, F b) { return _mm512_max_ps(a, b); }
  static INFENG_INLINE F abs(F a) { return _mm512_abs_ps(a); }
  static INFENG_INLINE F sqrt(F a) { return _mm512_sqrt_ps(a); }
  static INFENG_INLINE F select_less(F a, F b, F x, F y) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), y, x);
  }
  static INFENG_INLINE F exp2i(I n) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(n, _mm512_set1_epi32(127)), 23));
  }
  static INFENG_INLINE F scale_above(F x, F least, F y, F, F n) {
    return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(x, least, _CMP_GE_OQ), y, n);
  }
  static INFENG_INLINE float tree(F f) {
    const __m256 l8 = _mm256_add_ps(_mm512_castps512_ps256(f), _mm512_extractf32x8_ps(f, 1));
    const __m128 l4 = _mm_add_ps(_mm256_castps256_ps128(l8), _mm256_extractf128_ps(l8, 1));
    const __m128 l2 = _mm_add_ps(l4, _mm_movehl_ps(l4, l4));
    return _mm_cvtss_f32(_mm_add_ss(l2, _mm_movehdup_ps(l2)));
  }
  template <int H>
  static INFENG_INLINE F butterfly(F f) {
    constexpr __mmask16 kDifference = H == 8 ? 0xff00 : H == 4 ? 0xf0f0 : H == 2 ? 0xcccc : 0xaaaa;
    F other;
    if constexpr (H == 8) {
      other = _mm512_shuffle_f32x4(f, f, 0x4e);
    } else if constexpr (H == 4) {
      other = _mm512_shuffle_f32x4(f, f, 0xb1);
    } else {
      other = _mm512_permute_ps(f, H == 2 ? 0x4e : 0xb1);
    }
    return _mm512_mask_sub_ps(_mm512_add_ps(f, other), kDifference, other, f);
  }
  static INFENG_INLINE float max_lanes(F f) { return _mm512_reduce_max_ps(f); }
  static INFENG_INLINE I load_i32(const float* x) { return _mm512_load_si512(x); }
  static INFENG_INLINE void store_i32(float* y, I n) { _mm512_store_si512(y, n); }
  static INFENG_INLINE I iset(int32_t n) { return _mm512_set1_epi32(n); }
  static INFENG_INLINE I iadd(I a, I b) { return _mm512_add_epi32(a, b); }
  static INFENG_INLINE I imin(I a, I b) { return _mm512_min_epi32(a, b); }
  static INFENG_INLINE I imax(I a, I b) { return _mm512_max_epi32(a, b); }
  static INFENG_INLINE I rne(F f) { return _mm512_cvt_roundps_epi32(f, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static INFENG_INLINE F to_float(I i) { return _mm512_cvtepi32_ps(i); }
  static INFENG_INLINE int32_t isum(I i) { return _mm512_reduce_add_epi32(i); }
  static INFENG_INLINE F load_f16(const uint16_t* h) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)h)); }
  static INFENG_INLINE F load_f16(const uint16_t* h, int n) {
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(lanes(n), h));
  }
  static INFENG_INLINE void store_f16(uint16_t* h, F f) {
    _mm256_storeu_si256((__m256i*)h, _mm512_cvtps_ph(f, _MM_FROUND_TO_NEAREST_INT));
  }
  static INFENG_INLINE F load_bf16(const uint16_t* h) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)h)), 16));
  }
  static INFENG_INLINE F load_bf16_even(const void* line) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(line), 16));
  }
  static INFENG_INLINE F load_bf16_odd(const void* line) {
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(line), _mm512_set1_epi32(int(0xffff0000u))));
  }
  static INFENG_INLINE F load_i8(const int8_t* b) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)b)));
  }
  static INFENG_INLINE F load_i8(const int8_t* b, int n) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(lanes(n), b)));
  }
  static INFENG_INLINE F load_i4(const uint8_t* b) {
    const __m128i v = _mm_loadl_epi64((const __m128i*)b);
    const __m128i nibbles = _mm_and_si128(_mm_unpacklo_epi64(v, _mm_srli_epi16(v, 4)), _mm_set1_epi8(15));
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_sub_epi8(nibbles, _mm_set1_epi8(8))));
  }
  // Except for the sign, a code is the upper half of a binary16.
  static INFENG_INLINE F load_e4m3(const uint8_t* b) { return widen_e4m3(_mm_loadu_si128((const __m128i*)b)); }
  static INFENG_INLINE F load_e4m3(const uint8_t* b, int n) { return widen_e4m3(_mm_maskz_loadu_epi8(lanes(n), b)); }
  static INFENG_INLINE void store_i8(int8_t* q, I i) { _mm_storeu_si128((__m128i*)q, _mm512_cvtepi32_epi8(i)); }
  static INFENG_INLINE int32_t sum_i8(const int8_t* b, int n) {
    const __m256i ones8 = _mm256_set1_epi8(1), ones16 = _mm256_set1_epi16(1);
    __m256i sum = _mm256_setzero_si256();
    for (int i = 0; i < n; i += 32) {
      const __m256i pairs = _mm256_maddubs_epi16(ones8, _mm256_loadu_si256((const __m256i*)(b + i)));
      sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, ones16));
    }
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
  }
  static INFENG_INLINE void unpack_nibbles(const void* line, uint8_t* low, uint8_t* high) {
    const I mask = _mm512_set1_epi8(15), v = _mm512_loadu_si512(line);
    _mm512_storeu_si512(low, _mm512_and_si512(v, mask));
    _mm512_storeu_si512(high, _mm512_and_si512(_mm512_srli_epi16(v, 4), mask));
  }
  static INFENG_INLINE void prefetch(const void* line) { _mm_prefetch((const char*)line, _MM_HINT_T1); }

  template <int Bits>
  static INFENG_INLINE void sub_scales(const uint8_t* packed, int odd, SubScales& out) {
    const I first = _mm512_set1_epi32(0x01000100), last = _mm512_set1_epi32(0x03020302);
    const I lanes = _mm512_broadcast_i32x4(_mm_set_epi32(0x0c0c0c0c, 0x08080808, 0x04040404, 0));
    const I v = line(packed), byte = odd ? _mm512_srli_epi16(v, 8) : _mm512_and_si512(v, _mm512_set1_epi16(255));
    const I s =
        _mm512_add_epi16(_mm512_and_si512(byte, _mm512_set1_epi16((1 << (8 - Bits)) - 1)), _mm512_set1_epi16(1));
    _mm512_store_si512(out.s[0], _mm512_shuffle_epi8(s, _mm512_add_epi8(lanes, first)));
    _mm512_store_si512(out.s[1], _mm512_shuffle_epi8(s, _mm512_add_epi8(lanes, last)));
    _mm512_store_si512(out.zs, _mm512_mullo_epi16(s, _mm512_srli_epi16(byte, 8 - Bits)));
  }
  // High nibbles as bytes. With GFNI it is one multiplication by a bit matrix: bit i of the result is bit i + 4.
  static INFENG_INLINE I high_nibbles(I v) {
#ifdef __GFNI__
    return _mm512_gf2p8affine_epi64_epi8(v, _mm512_set1_epi64(0x1020408000000000), 0);
#else
    return _mm512_and_si512(_mm512_srli_epi16(v, 4), _mm512_set1_epi8(15));
#endif
  }
  // Line l of the eight unpacked lines of 32 k: nibbles with their upper bits.
  template <int Bits>
  static INFENG_INLINE I units(const uint8_t* packed, int l) {
    const I v = line(packed + l % 4 * kLine);
    const I nibbles = l < 4 ? _mm512_and_si512(v, _mm512_set1_epi8(15)) : high_nibbles(v);
    if constexpr (Bits == 4) return nibbles;
    constexpr int kLinesOf = Bits == 5 ? 8 : 4;  // lines that share a line of upper bits
    const I bits = line(packed + (4 + l / kLinesOf) * kLine);
    const int shift = 4 - (Bits - 4) * (l % kLinesOf);
    const I moved = shift >= 0 ? _mm512_slli_epi16(bits, unsigned(shift)) : _mm512_srli_epi16(bits, unsigned(-shift));
    return _mm512_or_si512(nibbles, _mm512_and_si512(moved, _mm512_set1_epi8(Bits == 5 ? 0x10 : 0x30)));
  }
  // s (u - z) + Bias. One 16-bit product scales two units without a carry; the zero point is subtracted from each byte.
  template <int Bits, uint8_t Bias>
  static INFENG_INLINE void unpack_weights(const uint8_t* packed, const SubScales& s, uint8_t* lines) {
    const I low = _mm512_broadcast_i32x4(_mm_set_epi32(0x0c0c0c0c, 0x08080808, 0x04040404, 0));
    const I zs = _mm512_sub_epi8(_mm512_load_si512(s.zs), _mm512_set1_epi8(char(Bias)));
    INFENG_EACH (h, 2) {
      const I scale = _mm512_load_si512(s.s[h]);
      const I zero = _mm512_shuffle_epi8(zs, _mm512_add_epi8(low, _mm512_set1_epi8(char(2 * h))));
      INFENG_EACH (l, 8) {
        const I u = units<Bits>(packed + h * Bits * kLine, l);
        _mm512_storeu_si512(lines + (8 * h + l) * kLine, _mm512_sub_epi8(_mm512_mullo_epi16(u, scale), zero));
      }
    }
  }
  static INFENG_INLINE int32_t minus_halves(const int8_t* x, int32_t sum) {
    const int32_t low = sum_i8(x, kGroup / 2), high = sum - low;
    return int32_t((uint32_t(-low) & 0xffffu) | uint32_t(-high) << 16);
  }
  static constexpr int packed_panels(int) { return 2; }

 protected:
  static INFENG_INLINE F widen_e4m3(__m128i codes) {
    const __m256i words = _mm256_slli_epi16(_mm256_cvtepi8_epi16(codes), 7);
    return _mm512_cvtph_ps(_mm256_and_si256(words, _mm256_set1_epi16(int16_t(0xbf80))));
  }
  // The contribution of the zero points: z * s times minus the sums of x, both halves at once.
  static INFENG_INLINE I zero_points(const SubScales& s, int32_t minus) {
    return _mm512_madd_epi16(_mm512_set1_epi32(minus), _mm512_load_si512(s.zs));
  }
  // Calls each(at) for the packed lines, evenly over the 16 unpacked lines.
  template <int Bits, class Each>
  static INFENG_INLINE void spread(int l, const Each& each) {
    if (l * 2 * Bits % 16 < 2 * Bits) each(l * 2 * Bits / 16);
  }
  static INFENG_INLINE I line(const uint8_t* w) { return _mm512_loadu_si512(w); }
  // 16 columns of four tokens from 32 bytes: the low nibbles, then the high ones.
  static INFENG_INLINE I columns_of_nibbles(const uint8_t* from) {
    const I both = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i*)from));
    return _mm512_and_si512(_mm512_mask_srli_epi16(both, 0xffff0000, both, 4), _mm512_set1_epi8(15));
  }
  // x[0..3] in every lane; the compiler folds it into the instruction that uses it.
  static INFENG_INLINE I four(const int8_t* x) {
    int32_t v;
    __builtin_memcpy(&v, x, 4);
    return _mm512_set1_epi32(v);
  }
  template <int Shift>
  static INFENG_INLINE I zero_point(int32_t sum) {
    return _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_slli_epi32(_mm512_set1_epi32(sum), Shift));
  }
};

// Without VNNI: `maddubs` adds pairs of products in saturating int16.
// 4-bit weights: a pair is at most 2 * 15 * 127 = 3810, so eight of them (30480) are added before widening.
// 8-bit weights: 255 * 127 * 2 would saturate, so w becomes |w - 128| and its sign moves to x: 2 * 127 * 127 = 32258
// fits.
struct Bw : Base {
  static constexpr int kRows = 4;
  static constexpr int kBlockRows = 3;
  static constexpr int kBlockPanels = 4;
  static constexpr int kScaledRows = 4;
  static constexpr int kPackedRows = 4;
  static constexpr int kPackedMost = 12;
  static constexpr int kScaledPanels = 4;

  template <int Bits, int M, int P, class Each>
  static INFENG_INLINE void dot_lines(I (&acc)[M][P], const uint8_t* const (&w)[P], int lines,
                                      const int8_t* const (&x)[M], const int32_t (&sum)[M], const Each& each) {
    const I ones = _mm512_set1_epi16(1);
    INFENG_EACH (m, M)
      INFENG_EACH (p, P) acc[m][p] = Bits == 4 ? zero_point<3>(sum[m]) : _mm512_setzero_si512();
    if constexpr (Bits == 4) {
      for (int first = 0; first < lines; first += 8) {
        I pairs[M][P];
        INFENG_EACH (m, M)
          INFENG_EACH (p, P) pairs[m][p] = _mm512_setzero_si512();
        const int last = lines - first < 8 ? lines : first + 8;
        INFENG_UNROLL_LINES
        for (int l = first; l < last; ++l)
          INFENG_EACH (p, P) {
            if (p == 0) each(l);
            const I v = line(w[p] + l * kLine);
            INFENG_EACH (m, M) pairs[m][p] = _mm512_add_epi16(pairs[m][p], _mm512_maddubs_epi16(v, four(x[m] + 4 * l)));
          }
        INFENG_EACH (m, M)
          INFENG_EACH (p, P) acc[m][p] = _mm512_add_epi32(acc[m][p], _mm512_madd_epi16(pairs[m][p], ones));
      }
    } else {
      static_assert(Bits == 8);
      for (int l = 0; l < lines; ++l)
        INFENG_EACH (p, P) {
          if (p == 0) each(l);
          const I v = _mm512_xor_si512(line(w[p] + l * kLine), _mm512_set1_epi8(-128));
          const __mmask64 negative = _mm512_movepi8_mask(v);
          const I magnitude = _mm512_abs_epi8(v);
          INFENG_EACH (m, M) {
            const I b = four(x[m] + 4 * l);
            const I signed_x = _mm512_mask_sub_epi8(b, negative, _mm512_setzero_si512(), b);
            const I pairs = _mm512_maddubs_epi16(magnitude, signed_x);
            acc[m][p] = _mm512_add_epi32(acc[m][p], _mm512_madd_epi16(pairs, ones));
          }
        }
    }
  }

  // Shares are words, tokens 0, 2, 1, 3 of each four: they are multiplied by the even and by the odd bytes of a line.
  using Share = int16_t;
  static INFENG_INLINE void store_shares(Share* to, I shares) {
    const __m256i words = _mm512_cvtepi32_epi16(shares);
    _mm256_storeu_si256((__m256i*)to, _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(words, 0xd8), 0xd8));
  }
  template <int M, int C>
  static INFENG_INLINE void add_shares(I (&acc)[M][C], const int8_t* lines, int step, const Share* b, int stride) {
    INFENG_EACH (g, kLanes / 4)
      INFENG_EACH (c, C) {
        const I v = line((const uint8_t*)lines + g * step + c * kLine);
        const I even = _mm512_srai_epi16(_mm512_slli_epi16(v, 8), 8), odd = _mm512_srai_epi16(v, 8);
        INFENG_EACH (m, M) {
          const int8_t* words = (const int8_t*)(b + m * stride + 4 * g);
          acc[m][c] = _mm512_add_epi32(acc[m][c], _mm512_madd_epi16(even, four(words)));
          acc[m][c] = _mm512_add_epi32(acc[m][c], _mm512_madd_epi16(odd, four(words + 4)));
        }
      }
  }

  // Pairs of 16 tokens stay below 2^15: 8 * 15 * 127 = 15240.
  template <int M, int C>
  static INFENG_INLINE void add_nibbles(I (&acc)[M][C], const uint8_t* lines, int step, const int8_t* b, int stride) {
    const I ones = _mm512_set1_epi16(1);
    INFENG_EACH (c, C) {
      I pairs[M];
      INFENG_EACH (m, M) pairs[m] = _mm512_setzero_si512();
      INFENG_EACH (g, kLanes / 4) {
        const I v = columns_of_nibbles(lines + g * step + c * (kLine / 2));
        INFENG_EACH (m, M) pairs[m] = _mm512_add_epi16(pairs[m], _mm512_maddubs_epi16(v, four(b + m * stride + 4 * g)));
      }
      INFENG_EACH (m, M) acc[m][c] = _mm512_add_epi32(acc[m][c], _mm512_madd_epi16(pairs[m], ones));
    }
  }

  template <int L, int M, int P, class Each>
  static INFENG_INLINE void dot_nibbles(I (&acc)[M][P], const uint8_t* const (&w)[P], const int8_t* const (&x)[M],
                                        const int32_t (&sum)[M], const Each& each) {
    static_assert(L <= 8, "more than eight pairs would overflow int16");
    const I mask = _mm512_set1_epi8(15), ones = _mm512_set1_epi16(1);
    INFENG_EACH (p, P) {
      I low[M], high[M];
      INFENG_EACH (m, M) low[m] = high[m] = _mm512_setzero_si512();
      INFENG_EACH (l, L) {
        if (p == 0) each(l);
        const I v = line(w[p] + l * kLine);
        const I lo = _mm512_and_si512(v, mask), hi = _mm512_and_si512(_mm512_srli_epi16(v, 4), mask);
        INFENG_EACH (m, M) {
          low[m] = _mm512_add_epi16(low[m], _mm512_maddubs_epi16(lo, four(x[m] + 4 * l)));
          high[m] = _mm512_add_epi16(high[m], _mm512_maddubs_epi16(hi, four(x[m] + 4 * (l + L))));
        }
      }
      INFENG_EACH (m, M)
        acc[m][p] = _mm512_add_epi32(_mm512_add_epi32(zero_point<3>(sum[m]), _mm512_madd_epi16(low[m], ones)),
                                     _mm512_madd_epi16(high[m], ones));
    }
  }

  // Widening pairs also multiplies them by the sub-scale. Units of 5 bits reach the limit of int16 after four lines
  // (31496), units of 6 bits after two (32004).
  template <int Bits>
  static INFENG_INLINE void unpack_lines(const uint8_t* packed, const SubScales&, uint8_t* lines) {
    INFENG_EACH (l, 16) _mm512_storeu_si512(lines + l * kLine, units<Bits>(packed + l / 8 * Bits * kLine, l % 8));
  }
  template <int Bits, int M, int P, class Each>
  static INFENG_INLINE void dot_scaled(I (&acc)[M][P], const uint8_t* const (&w)[P], const SubScales* const (&s)[P],
                                       const int8_t* const (&x)[M], const int32_t* minus, const Each& each) {
    dot_units<Bits>(acc, s, x, minus, [&](int p, int l) INFENG_INLINE_LAMBDA {
      if (p == 0) each(l);
      return line(w[p] + l * kLine);
    });
  }
  template <int Bits, int M, int P, class Each>
  static INFENG_INLINE void dot_packed(I (&acc)[M][P], const uint8_t* const (&w)[P], const SubScales* const (&s)[P],
                                       const int8_t* const (&x)[M], const int32_t* minus, const Each& each) {
    dot_units<Bits>(acc, s, x, minus, [&](int p, int l) INFENG_INLINE_LAMBDA {
      if (p == 0) spread<Bits>(l, each);
      return units<Bits>(w[p] + l / 8 * Bits * kLine, l % 8);
    });
  }

 private:
  template <int Bits, int M, int P, class Units>
  static INFENG_INLINE void dot_units(I (&acc)[M][P], const SubScales* const (&s)[P], const int8_t* const (&x)[M],
                                      const int32_t* minus, const Units& line_of) {
    constexpr int kLines = Bits == 4 ? 8 : Bits == 5 ? 4 : 2;  // lines between two widenings
    INFENG_EACH (p, P) {
      INFENG_EACH (m, M) acc[m][p] = zero_points(*s[p], minus[m]);
      INFENG_EACH (from, 16 / kLines) {
        I pairs[M];
        INFENG_EACH (m, M) pairs[m] = _mm512_setzero_si512();
        INFENG_EACH (i, kLines) {
          const int l = from * kLines + i;
          const I v = line_of(p, l);
          INFENG_EACH (m, M) pairs[m] = _mm512_add_epi16(pairs[m], _mm512_maddubs_epi16(v, four(x[m] + 4 * l)));
        }
        const I scale = _mm512_load_si512(s[p]->s[from * kLines / 8]);
        INFENG_EACH (m, M) acc[m][p] = _mm512_add_epi32(acc[m][p], _mm512_madd_epi16(pairs[m], scale));
      }
    }
  }
};

#ifdef __AVX512VNNI__
// `vpdpbusd` adds four u8 * s8 products to an int32 without saturation, so dots are exact; the accumulator starts with
// the contribution of the zero point.
struct Vnni : Base {
  static constexpr int kRows = 6;
  static constexpr int kBlockRows = 6;
  static constexpr int kBlockPanels = 4;
  static constexpr int kScaledRows = 6;
  static constexpr int kPackedRows = 6;
  static constexpr int kPackedMost = 12;
  static constexpr int kBias = 128;

  template <int Bits, int M, int P, class Each>
  static INFENG_INLINE void dot_lines(I (&acc)[M][P], const uint8_t* const (&w)[P], int lines,
                                      const int8_t* const (&x)[M], const int32_t (&sum)[M], const Each& each) {
    INFENG_EACH (m, M) {
      const I start = zero_point<Bits - 1>(sum[m]);
      INFENG_EACH (p, P) acc[m][p] = start;
    }
    INFENG_UNROLL_LINES
    for (int l = 0; l < lines; ++l) {
      I v[P];
      each(l);
      INFENG_EACH (p, P) v[p] = line(w[p] + l * kLine);
      INFENG_EACH (m, M) {
        const I b = four(x[m] + 4 * l);
        INFENG_EACH (p, P) acc[m][p] = _mm512_dpbusd_epi32(acc[m][p], v[p], b);
      }
    }
  }

  using Share = uint8_t;
  static INFENG_INLINE void store_shares(Share* to, I shares) {
    _mm_storeu_si128((__m128i*)to, _mm512_cvtepi32_epi8(shares));
  }
  template <int M, int C>
  static INFENG_INLINE void add_shares(I (&acc)[M][C], const int8_t* lines, int step, const Share* b, int stride) {
    INFENG_EACH (g, kLanes / 4) {
      I v[C];
      INFENG_EACH (c, C) v[c] = line((const uint8_t*)lines + g * step + c * kLine);
      INFENG_EACH (m, M) {
        const I shares = four((const int8_t*)b + m * stride + 4 * g);
        INFENG_EACH (c, C) acc[m][c] = _mm512_dpbusd_epi32(acc[m][c], shares, v[c]);
      }
    }
    // As in `add_biased`.
    INFENG_EACH (m, M)
      INFENG_EACH (c, C) __asm__("" : "+v"(acc[m][c]));
  }

  template <int M, int C>
  static INFENG_INLINE void add_nibbles(I (&acc)[M][C], const uint8_t* lines, int step, const int8_t* b, int stride) {
    INFENG_EACH (g, kLanes / 4) {
      I v[C];
      INFENG_EACH (c, C) v[c] = columns_of_nibbles(lines + g * step + c * (kLine / 2));
      INFENG_EACH (m, M) {
        const I shares = four(b + m * stride + 4 * g);
        INFENG_EACH (c, C) acc[m][c] = _mm512_dpbusd_epi32(acc[m][c], v[c], shares);
      }
    }
    // As in `add_biased`.
    INFENG_EACH (m, M)
      INFENG_EACH (c, C) __asm__("" : "+v"(acc[m][c]));
  }

  // With few rows, high nibbles are not shifted: their sum is 16 times too large and divided once per group. That saves
  // a shift per line and doubles the number of independent chains.
  template <int L, int M, int P, class Each>
  static INFENG_INLINE void dot_nibbles(I (&acc)[M][P], const uint8_t* const (&w)[P], const int8_t* const (&x)[M],
                                        const int32_t (&sum)[M], const Each& each) {
    constexpr bool kTwoChains = M <= 3;
    const I mask = _mm512_set1_epi8(15), high_mask = _mm512_set1_epi8(-16);
    I high[M][P];
    INFENG_EACH (m, M) {
      const I start = zero_point<3>(sum[m]);
      INFENG_EACH (p, P) {
        acc[m][p] = start;
        high[m][p] = _mm512_setzero_si512();
      }
    }
    INFENG_EACH (l, L) {
      I lo[P], hi[P];
      each(l);
      INFENG_EACH (p, P) {
        const I v = line(w[p] + l * kLine);
        lo[p] = _mm512_and_si512(v, mask);
        hi[p] = kTwoChains ? _mm512_and_si512(v, high_mask) : high_nibbles(v);
      }
      INFENG_EACH (m, M) {
        const I a = four(x[m] + 4 * l), b = four(x[m] + 4 * (l + L));
        INFENG_EACH (p, P) {
          acc[m][p] = _mm512_dpbusd_epi32(acc[m][p], lo[p], a);
          I& target = kTwoChains ? high[m][p] : acc[m][p];
          target = _mm512_dpbusd_epi32(target, hi[p], b);
        }
      }
    }
    if constexpr (kTwoChains)
      INFENG_EACH (m, M)
        INFENG_EACH (p, P) acc[m][p] = _mm512_add_epi32(acc[m][p], _mm512_srai_epi32(high[m][p], 4));
  }

  template <int Bits>
  static INFENG_INLINE void unpack_lines(const uint8_t* packed, const SubScales& s, uint8_t* lines) {
    unpack_weights<Bits, 128>(packed, s, lines);
  }
  template <int M, int P, class Each>
  static INFENG_INLINE void add_biased(I (&acc)[M][P], const uint8_t* const (&w)[P], const int8_t* const (&x)[M],
                                       const Each& each) {
    INFENG_EACH (l, 16) {
      I v[P];
      each(l);
      INFENG_EACH (p, P) v[p] = line(w[p] + l * kLine);
      add_products(acc, v, x, l);
    }
    // Otherwise GCC would pass the sums through memory from iteration to iteration.
    INFENG_EACH (m, M)
      INFENG_EACH (p, P) __asm__("" : "+v"(acc[m][p]));
  }
  // With few rows, the sums over 32 k are scaled instead of their 8 lines.
  template <int Bits, int M, int P, class Each>
  static INFENG_INLINE void dot_packed(I (&acc)[M][P], const uint8_t* const (&w)[P], const SubScales* const (&s)[P],
                                       const int8_t* const (&x)[M], const int32_t* minus, const Each& each) {
    constexpr bool kLate = M <= 3;
    INFENG_EACH (m, M)
      INFENG_EACH (p, P) acc[m][p] = zero_points(*s[p], minus[m]);
    INFENG_EACH (h, 2) {
      I sum[M][P];
      if constexpr (kLate)
        INFENG_EACH (m, M)
          INFENG_EACH (p, P) sum[m][p] = _mm512_setzero_si512();
      INFENG_EACH (i, 8) {
        const int l = 8 * h + i;
        I v[P];
        spread<Bits>(l, each);
        INFENG_EACH (p, P) v[p] = kLate ? units<Bits>(w[p] + h * Bits * kLine, i) : scaled<Bits>(w[p], *s[p], l);
        add_products(kLate ? sum : acc, v, x, l);
      }
      if constexpr (kLate)
        INFENG_EACH (p, P) {
          const I scale = _mm512_and_si512(_mm512_load_si512(s[p]->s[h]), _mm512_set1_epi32(0xffff));
          INFENG_EACH (m, M) acc[m][p] = _mm512_add_epi32(acc[m][p], _mm512_mullo_epi32(sum[m][p], scale));
        }
    }
  }

 private:
  // A unit times its sub-scale is at most 252, so one 16-bit product scales two units without a carry.
  template <int Bits>
  static INFENG_INLINE I scaled(const uint8_t* packed, const SubScales& s, int l) {
    return _mm512_mullo_epi16(units<Bits>(packed + l / 8 * Bits * kLine, l % 8), _mm512_load_si512(s.s[l / 8]));
  }
  template <int M, int P>
  static INFENG_INLINE void add_products(I (&acc)[M][P], const I (&v)[P], const int8_t* const (&x)[M], int l) {
    INFENG_EACH (m, M) {
      const I b = four(x[m] + 4 * l);
      INFENG_EACH (p, P) acc[m][p] = _mm512_dpbusd_epi32(acc[m][p], v[p], b);
    }
  }
};
#ifdef __GFNI__
using Gfni = Vnni;
#endif
#endif

}  // namespace
}  // namespace infeng::avx512
#endif  // INFENG_SIMD_AVX512_H
