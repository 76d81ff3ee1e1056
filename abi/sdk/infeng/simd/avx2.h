// AVX2 backends of the vocabulary in vec.h: `Avx2` needs AVX2, FMA and F16C (CPUs since Haswell), `AvxVnni` also
// AVX-VNNI. A vector takes two of the sixteen ymm registers, so integer products are computed panel by panel, and the
// sums of a group are kept in memory.
// SPDX-License-Identifier: Apache-2.0
#ifndef INFENG_SIMD_AVX2_H
#define INFENG_SIMD_AVX2_H

#include <immintrin.h>
#include <infeng/simd/vec.h>

namespace infeng::avx2 {
namespace {

struct Base {
  struct F {
    __m256 a, b;  // lanes 0-7 and 8-15
  };
  struct I {
    __m256i a, b;
  };
  static constexpr int kColumns = 1;

  static INFENG_INLINE F zero() { return set(0.0f); }
  static INFENG_INLINE F set(float s) { return {_mm256_set1_ps(s), _mm256_set1_ps(s)}; }
  static INFENG_INLINE F load(const float* x) { return {_mm256_loadu_ps(x), _mm256_loadu_ps(x + 8)}; }
  static INFENG_INLINE F load(const float* x, int n) {
    if (n >= kLanes) return load(x);
    return {_mm256_maskload_ps(x, first(n)), _mm256_maskload_ps(x + 8, first(n - 8))};
  }
  static INFENG_INLINE void store(float* y, F f) {
    _mm256_storeu_ps(y, f.a);
    _mm256_storeu_ps(y + 8, f.b);
  }
  static INFENG_INLINE void store(float* y, F f, int n) {
    if (n >= kLanes) return store(y, f);
    _mm256_maskstore_ps(y, first(n), f.a);
    _mm256_maskstore_ps(y + 8, first(n - 8), f.b);
  }
  static INFENG_INLINE F add(F x, F y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
  static INFENG_INLINE F sub(F x, F y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
  static INFENG_INLINE F mul(F x, F y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
  static INFENG_INLINE F div(F x, F y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
  static INFENG_INLINE F fma(F x, F y, F z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
  static INFENG_INLINE F fms(F x, F y, F z) { return {_mm256_fmsub_ps(x.a, y.a, z.a), _mm256_fmsub_ps(x.b, y.b, z.b)}; }
  static INFENG_INLINE F min(F x, F y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
  static INFENG_INLINE F max(F x, F y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
  static INFENG_INLINE F abs(F x) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return {_mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, x.b)};
  }
  static INFENG_INLINE F sqrt(F x) { return {_mm256_sqrt_ps(x.a), _mm256_sqrt_ps(x.b)}; }
  static INFENG_INLINE F select_less(F x, F y, F yes, F no) {
    return {_mm256_blendv_ps(no.a, yes.a, _mm256_cmp_ps(x.a, y.a, _CMP_LT_OQ)),
            _mm256_blendv_ps(no.b, yes.b, _mm256_cmp_ps(x.b, y.b, _CMP_LT_OQ))};
  }
  static INFENG_INLINE F exp2i(I n) {
    const __m256i bias = _mm256_set1_epi32(127);
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n.a, bias), 23)),
            _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n.b, bias), 23))};
  }
  static INFENG_INLINE F scale_above(F x, F least, F y, F bits, F) {
    return {scale_above(x.a, least.a, y.a, bits.a), scale_above(x.b, least.b, y.b, bits.b)};
  }
  static INFENG_INLINE float tree(F f) {
    const __m256 l8 = _mm256_add_ps(f.a, f.b);
    const __m128 l4 = _mm_add_ps(_mm256_castps256_ps128(l8), _mm256_extractf128_ps(l8, 1));
    const __m128 l2 = _mm_add_ps(l4, _mm_movehl_ps(l4, l4));
    return _mm_cvtss_f32(_mm_add_ss(l2, _mm_movehdup_ps(l2)));
  }
  // The difference is a sum in which the other lane is negated.
  template <int H>
  static INFENG_INLINE F butterfly(F f) {
    if constexpr (H == 8) {
      return {_mm256_add_ps(f.a, f.b), _mm256_sub_ps(f.a, f.b)};
    } else {
      return {butterfly_of_eight<H>(f.a), butterfly_of_eight<H>(f.b)};
    }
  }
  static INFENG_INLINE float max_lanes(F f) {
    const __m256 l8 = _mm256_max_ps(f.a, f.b);
    const __m128 l4 = _mm_max_ps(_mm256_castps256_ps128(l8), _mm256_extractf128_ps(l8, 1));
    const __m128 l2 = _mm_max_ps(l4, _mm_movehl_ps(l4, l4));
    return _mm_cvtss_f32(_mm_max_ss(l2, _mm_movehdup_ps(l2)));
  }
  static INFENG_INLINE I load_i32(const float* x) {
    return {_mm256_load_si256((const __m256i*)x), _mm256_load_si256((const __m256i*)(x + 8))};
  }
  static INFENG_INLINE void store_i32(float* y, I n) {
    _mm256_store_si256((__m256i*)y, n.a);
    _mm256_store_si256((__m256i*)(y + 8), n.b);
  }
  static INFENG_INLINE I iset(int32_t n) { return {_mm256_set1_epi32(n), _mm256_set1_epi32(n)}; }
  static INFENG_INLINE I iadd(I x, I y) { return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
  static INFENG_INLINE I imin(I x, I y) { return {_mm256_min_epi32(x.a, y.a), _mm256_min_epi32(x.b, y.b)}; }
  static INFENG_INLINE I imax(I x, I y) { return {_mm256_max_epi32(x.a, y.a), _mm256_max_epi32(x.b, y.b)}; }
  // Rounds to nearest even, the mode that the host sets in MXCSR (docs/numerics.md).
  static INFENG_INLINE I rne(F f) { return {_mm256_cvtps_epi32(f.a), _mm256_cvtps_epi32(f.b)}; }
  static INFENG_INLINE F to_float(I i) { return {_mm256_cvtepi32_ps(i.a), _mm256_cvtepi32_ps(i.b)}; }
  static INFENG_INLINE int32_t isum(I i) { return sum_of_eight(_mm256_add_epi32(i.a, i.b)); }
  static INFENG_INLINE F load_f16(const uint16_t* h) {
    return {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)h)),
            _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(h + 8)))};
  }
  static INFENG_INLINE F load_f16(const uint16_t* h, int n) {
    if (n >= kLanes) return load_f16(h);
    uint16_t halves[kLanes] = {};
    for (int i = 0; i < n; ++i) halves[i] = h[i];
    return load_f16(halves);
  }
  static INFENG_INLINE void store_f16(uint16_t* h, F f) {
    _mm_storeu_si128((__m128i*)h, _mm256_cvtps_ph(f.a, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128((__m128i*)(h + 8), _mm256_cvtps_ph(f.b, _MM_FROUND_TO_NEAREST_INT));
  }
  static INFENG_INLINE F load_bf16(const uint16_t* h) {
    const __m256i a = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)h));
    const __m256i b = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)(h + 8)));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(a, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(b, 16))};
  }
  static INFENG_INLINE F load_bf16_even(const void* line) {
    return {_mm256_castsi256_ps(_mm256_slli_epi32(half(line, 0), 16)),
            _mm256_castsi256_ps(_mm256_slli_epi32(half(line, 1), 16))};
  }
  static INFENG_INLINE F load_bf16_odd(const void* line) {
    const __m256i upper = _mm256_set1_epi32(int(0xffff0000u));
    return {_mm256_castsi256_ps(_mm256_and_si256(half(line, 0), upper)),
            _mm256_castsi256_ps(_mm256_and_si256(half(line, 1), upper))};
  }
  static INFENG_INLINE F load_i8(const int8_t* b) {
    return to_float({_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)b)),
                     _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)(b + 8)))});
  }
  static INFENG_INLINE F load_i8(const int8_t* b, int n) {
    if (n >= kLanes) return load_i8(b);
    int8_t bytes[kLanes] = {};
    for (int i = 0; i < n; ++i) bytes[i] = b[i];
    return load_i8(bytes);
  }
  static INFENG_INLINE F load_i4(const uint8_t* b) {
    const __m128i v = _mm_loadl_epi64((const __m128i*)b), mask = _mm_set1_epi8(15), eight = _mm_set1_epi8(8);
    const __m128i low = _mm_sub_epi8(_mm_and_si128(v, mask), eight);
    const __m128i high = _mm_sub_epi8(_mm_and_si128(_mm_srli_epi16(v, 4), mask), eight);
    return to_float({_mm256_cvtepi8_epi32(low), _mm256_cvtepi8_epi32(high)});
  }
  // Except for the sign, a code is the upper half of a binary16.
  static INFENG_INLINE F load_e4m3(const uint8_t* b) {
    const __m256i code = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)b));
    const __m256i halves = _mm256_and_si256(_mm256_slli_epi16(code, 7), _mm256_set1_epi16(int16_t(0xbf80)));
    return {_mm256_cvtph_ps(_mm256_castsi256_si128(halves)), _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1))};
  }
  static INFENG_INLINE F load_e4m3(const uint8_t* b, int n) {
    if (n >= kLanes) return load_e4m3(b);
    uint8_t codes[kLanes] = {};
    for (int i = 0; i < n; ++i) codes[i] = b[i];
    return load_e4m3(codes);
  }
  static INFENG_INLINE void store_i8(int8_t* q, I i) {
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(i.a, i.b), 0xd8);
    _mm_storeu_si128((__m128i*)q, _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
  }
  static INFENG_INLINE int32_t sum_i8(const int8_t* b, int n) {
    __m256i sum = _mm256_setzero_si256();
    for (int i = 0; i < n; i += 32)
      sum = _mm256_add_epi32(sum, widen(_mm256_maddubs_epi16(_mm256_set1_epi8(1), half(b + i, 0))));
    return sum_of_eight(sum);
  }
  static INFENG_INLINE void unpack_nibbles(const void* line, uint8_t* low, uint8_t* high) {
    INFENG_EACH (h, 2) {
      const __m256i v = half(line, h);
      _mm256_storeu_si256((__m256i*)low + h, low_nibbles(v));
      _mm256_storeu_si256((__m256i*)high + h, low_nibbles(_mm256_srli_epi16(v, 4)));
    }
  }
  static INFENG_INLINE void prefetch(const void* line) { _mm_prefetch((const char*)line, _MM_HINT_T1); }

  template <int Bits>
  static INFENG_INLINE void sub_scales(const uint8_t* line, int odd, SubScales& out) {
    const __m256i first = _mm256_set1_epi32(0x01000100), last = _mm256_set1_epi32(0x03020302);
    const __m256i lanes =
        _mm256_set_epi32(0x0c0c0c0c, 0x08080808, 0x04040404, 0, 0x0c0c0c0c, 0x08080808, 0x04040404, 0);
    INFENG_EACH (h, 2) {
      const __m256i v = half(line, h);
      const __m256i byte = odd ? _mm256_srli_epi16(v, 8) : _mm256_and_si256(v, _mm256_set1_epi16(255));
      const __m256i s =
          _mm256_add_epi16(_mm256_and_si256(byte, _mm256_set1_epi16((1 << (8 - Bits)) - 1)), _mm256_set1_epi16(1));
      _mm256_store_si256((__m256i*)out.s[0] + h, _mm256_shuffle_epi8(s, _mm256_add_epi8(lanes, first)));
      _mm256_store_si256((__m256i*)out.s[1] + h, _mm256_shuffle_epi8(s, _mm256_add_epi8(lanes, last)));
      _mm256_store_si256((__m256i*)out.zs + h, _mm256_mullo_epi16(s, _mm256_srli_epi16(byte, 8 - Bits)));
    }
  }
  // Reads both groups of a superblock. In 16-bit lanes, s times z is one product if the other byte is 0.
  template <int Bits>
  static INFENG_INLINE void sub_scales(const uint8_t* line, SubScales& even, SubScales& odd) {
    constexpr int kMost = (1 << Bits) - 1;  // of z
    INFENG_EACH (h, 2) {
      const __m256i v = half(line, h), z = _mm256_srli_epi16(v, 8 - Bits);
      const __m256i s =
          _mm256_add_epi8(_mm256_and_si256(v, _mm256_set1_epi8((1 << (8 - Bits)) - 1)), _mm256_set1_epi8(1));
      _mm256_store_si256((__m256i*)even.s[0] + h, _mm256_shuffle_epi8(s, twice(0)));
      _mm256_store_si256((__m256i*)even.s[1] + h, _mm256_shuffle_epi8(s, twice(2)));
      _mm256_store_si256((__m256i*)odd.s[0] + h, _mm256_shuffle_epi8(s, twice(1)));
      _mm256_store_si256((__m256i*)odd.s[1] + h, _mm256_shuffle_epi8(s, twice(3)));
      _mm256_store_si256((__m256i*)even.zs + h, _mm256_maddubs_epi16(s, _mm256_and_si256(z, _mm256_set1_epi16(kMost))));
      _mm256_store_si256((__m256i*)odd.zs + h,
                         _mm256_maddubs_epi16(s, _mm256_and_si256(z, _mm256_set1_epi16(kMost << 8))));
    }
  }
  // The sum of 32 bytes x + 128 is computed as four sums of eight.
  static INFENG_INLINE int32_t minus_halves(const int8_t* x, int32_t sum) {
    const __m256i shifted = _mm256_xor_si256(half(x, 0), _mm256_set1_epi8(-128));
    const __m256i sums = _mm256_sad_epu8(shifted, _mm256_setzero_si256());
    const __m128i two = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
    const int32_t low = _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_unpackhi_epi64(two, two))) - 128 * kGroup / 2;
    return int32_t((uint32_t(-low) & 0xffffu) | uint32_t(low - sum) << 16);
  }

 protected:
  static INFENG_INLINE __m256 scale_above(__m256 x, __m256 least, __m256 y, __m256 bits) {
    const __m256i exponent = _mm256_slli_epi32(_mm256_castps_si256(bits), 23);
    const __m256 scaled = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(y), exponent));
    return _mm256_and_ps(scaled, _mm256_cmp_ps(x, least, _CMP_GE_OQ));
  }
  template <int H>
  static INFENG_INLINE __m256 butterfly_of_eight(__m256 x) {
    const float n = -0.0f;
    if constexpr (H == 4) {
      const __m256 sign = _mm256_setr_ps(0, 0, 0, 0, n, n, n, n);
      return _mm256_add_ps(_mm256_permute2f128_ps(x, x, 1), _mm256_xor_ps(x, sign));
    } else if constexpr (H == 2) {
      const __m256 sign = _mm256_setr_ps(0, 0, n, n, 0, 0, n, n);
      return _mm256_add_ps(_mm256_permute_ps(x, 0x4e), _mm256_xor_ps(x, sign));
    } else {
      const __m256 sign = _mm256_setr_ps(0, n, 0, n, 0, n, 0, n);
      return _mm256_add_ps(_mm256_permute_ps(x, 0xb1), _mm256_xor_ps(x, sign));
    }
  }
  // All ones in the first n of eight lanes.
  static INFENG_INLINE __m256i first(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  // Bytes [32 h, 32 h + 32) of a line: outputs 8 h and on.
  static INFENG_INLINE __m256i half(const void* line, int h) { return _mm256_loadu_si256((const __m256i*)line + h); }
  static INFENG_INLINE __m256i low_nibbles(__m256i v) { return _mm256_and_si256(v, _mm256_set1_epi8(15)); }
  // x[0..3] in every lane.
  static INFENG_INLINE __m256i four(const int8_t* x) {
    int32_t v;
    __builtin_memcpy(&v, x, 4);
    return _mm256_set1_epi32(v);
  }
  // Adds pairs of int16 to one int32.
  static INFENG_INLINE __m256i widen(__m256i pairs) { return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)); }
  static INFENG_INLINE int32_t sum_of_eight(__m256i l8) {
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(l8), _mm256_extracti128_si256(l8, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
  }
  // Line l of the eight unpacked lines of 32 k: nibbles with their upper bits.
  template <int Bits>
  static INFENG_INLINE __m256i units(const uint8_t* packed, int l, int h) {
    const __m256i v = half(packed + l % 4 * kLine, h);
    const __m256i nibbles = low_nibbles(l < 4 ? v : _mm256_srli_epi16(v, 4));
    if constexpr (Bits == 4) return nibbles;
    constexpr int kLinesOf = Bits == 5 ? 8 : 4;  // lines that share a line of upper bits
    const __m256i bits = half(packed + (4 + l / kLinesOf) * kLine, h);
    const int shift = 4 - (Bits - 4) * (l % kLinesOf);
    const __m256i moved = shift >= 0 ? _mm256_slli_epi16(bits, shift) : _mm256_srli_epi16(bits, -shift);
    return _mm256_or_si256(nibbles, _mm256_and_si256(moved, _mm256_set1_epi8(Bits == 5 ? 0x10 : 0x30)));
  }
  // A shuffle that copies byte b of each 32 bits to two int16.
  static INFENG_INLINE __m256i twice(int b) {
    const int32_t zeros = int32_t(0x80008000u), one = zeros + b * 0x10001, step = 4 * 0x10001;
    return _mm256_broadcastsi128_si256(_mm_setr_epi32(one, one + step, one + 2 * step, one + 3 * step));
  }
  // z * s times minus the sums of x, both halves of k at once.
  static INFENG_INLINE I zero_points(const SubScales& s, int32_t minus) {
    const __m256i v = _mm256_set1_epi32(minus);
    return {_mm256_madd_epi16(v, _mm256_load_si256((const __m256i*)s.zs)),
            _mm256_madd_epi16(v, _mm256_load_si256((const __m256i*)s.zs + 1))};
  }
  // The contribution of the weights' zero point, 2^Shift, to each row's dot; in memory, because a broadcast load is
  // free.
  template <int Shift, int M>
  static INFENG_INLINE void zero_points(int32_t (&start)[M], const int32_t (&sum)[M]) {
    INFENG_EACH (m, M) start[m] = -sum[m] * (1 << Shift);
    __asm__ volatile("" : : "r"(start) : "memory");
  }
  // Called between lines to make GCC read x again; otherwise it would keep broadcasts on the stack from panel to panel.
  static INFENG_INLINE void forget_loads() { __asm__ volatile("" : : : "memory"); }
  // Makes GCC compute a sum now; otherwise it would delay the additions of a group and keep its products on the stack.
  static INFENG_INLINE void settle(__m256i& sum) { __asm__("" : "+x"(sum)); }
  // Called for every line in each of `Passes` passes: calls each(l) once for every l, evenly over all passes.
  template <int Passes, class Each>
  static INFENG_INLINE void spread(int pass, int lines, int l, const Each& each) {
    const int at = pass * lines + l;
    if (at % Passes == 0) each(at / Passes);
  }
  // Called for line l of 16 of panel p of `P`: calls each() once for every packed line, evenly over all lines.
  template <int Bits, int P, class Each>
  static INFENG_INLINE void spread_packed(int p, int l, const Each& each) {
    constexpr int kPacked = 2 * Bits;
    const int at = (16 * p + l) * kPacked;
    if (at % (16 * P) < kPacked) each(at / (16 * P));
  }
};

// `maddubs` adds pairs of products in saturating int16.
// 4-bit weights: a pair is at most 2 * 15 * 127 = 3810, so eight of them (30480) are added before widening.
// 8-bit weights: 255 * 127 * 2 would saturate, so w becomes |w - 128| and its sign moves to x: 2 * 127 * 127 = 32258.
struct Avx2 : Base {
  static constexpr int kRows = 5;
  static constexpr int kBlockRows = 5;
  static constexpr int kBlockPanels = 1;
  static constexpr int kScaledRows = 6;
  static constexpr int kPackedRows = 5;
  static constexpr int kPackedMost = 12;
  static constexpr int kScaledPanels = 1;
  static constexpr int kWordRows = 6;
  // Two panels share the broadcasts of x if their sums leave enough registers.
  static constexpr int packed_panels(int rows) { return rows <= 2 ? 2 : 1; }

  template <int Bits, int M, int P, class Each>
  static INFENG_INLINE void dot_lines(I (&acc)[M][P], const uint8_t* const (&w)[P], int lines,
                                      const int8_t* const (&x)[M], const int32_t (&sum)[M], const Each& each) {
    if constexpr (Bits == 4) {
      // `lines` is a multiple of eight.
      int32_t start[M];
      zero_points<3>(start, sum);
      INFENG_EACH (p, P) {
        INFENG_EACH (m, M) acc[m][p] = iset(start[m]);
        for (int from = 0; from < lines; from += 8) {
          __m256i pairs[M][2];
          INFENG_EACH (m, M) pairs[m][0] = pairs[m][1] = _mm256_setzero_si256();
          INFENG_EACH (i, 8) {
            const int l = from + i;
            spread<P>(p, lines, l, each);
            add_pairs(pairs, half(w[p] + l * kLine, 0), half(w[p] + l * kLine, 1), x, l);
          }
          INFENG_EACH (m, M) {
            acc[m][p].a = _mm256_add_epi32(acc[m][p].a, widen(pairs[m][0]));
            acc[m][p].b = _mm256_add_epi32(acc[m][p].b, widen(pairs[m][1]));
          }
        }
      }
    } else {
      static_assert(Bits == 8);
      INFENG_EACH (p, P) {
        INFENG_EACH (h, 2) {
          __m256i total[M];
          INFENG_EACH (m, M) total[m] = _mm256_setzero_si256();
          for (int l = 0; l < lines; ++l) {
            spread<2 * P>(2 * p + h, lines, l, each);
            const __m256i v = _mm256_xor_si256(half(w[p] + l * kLine, h), _mm256_set1_epi8(-128));
            const __m256i magnitude = _mm256_abs_epi8(v);
            INFENG_EACH (m, M) add_quads(total[m], magnitude, v, x[m] + 4 * l);
          }
          INFENG_EACH (m, M) (h == 0 ? acc[m][p].a : acc[m][p].b) = total[m];
        }
      }
    }
  }

  // Converts bytes to words: the even and the odd ones of a line's 4 k, each multiplied by two words of x. Such
  // products need no sign handling and no widening: half the multiplications of a dot of bytes and equally many
  // additions.
  static INFENG_INLINE void words_of(const int8_t* x, int n, int16_t* words) {
    const __m128i evens_first = _mm_setr_epi8(0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15);
    for (int i = 0; i < n; i += kLanes) {
      const __m128i bytes = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i*)(x + i)), evens_first);
      _mm256_storeu_si256((__m256i*)(words + i), _mm256_cvtepi8_epi16(bytes));
    }
  }

  template <int M, class Each>
  static INFENG_INLINE void dot_words(I (&acc)[M], const uint8_t* w, int lines, const int16_t* x, int stride,
                                      const int32_t* start, const Each& each) {
    alignas(32) static constexpr int16_t kEven[16] = {255, 255, 255, 255, 255, 255, 255, 255,
                                                      255, 255, 255, 255, 255, 255, 255, 255};
    INFENG_EACH (m, M) acc[m] = iset(start[m]);
    for (int l = 0; l < lines; ++l, w += kLine, x += 4) {
      each(l);
      __m256i a, b;
      __asm__(
          "vmovdqu %[w0], %[a]\n\t"
          "vmovdqu %[w1], %[b]\n\t"
          "vpand %[even], %[a], %[a]\n\t"
          "vpand %[even], %[b], %[b]"
          : [a] "=&x"(a), [b] "=x"(b)
          : [w0] "m"(*(const __m256i_u*)w), [w1] "m"(*((const __m256i_u*)w + 1)), [even] "m"(kEven));
      INFENG_EACH (m, M) add_words(acc[m], a, b, x + m * stride);
      __asm__(
          "vmovdqu %[w0], %[a]\n\t"
          "vmovdqu %[w1], %[b]\n\t"
          "vpsrlw $8, %[a], %[a]\n\t"
          "vpsrlw $8, %[b], %[b]"
          : [a] "=&x"(a), [b] "=x"(b)
          : [w0] "m"(*(const __m256i_u*)w), [w1] "m"(*((const __m256i_u*)w + 1)));
      INFENG_EACH (m, M) add_words(acc[m], a, b, x + m * stride + 2);
    }
  }

  // Shares are words like `words_of` x: tokens 0, 2, 1, 3 of each four.
  using Share = int16_t;
  static INFENG_INLINE void store_shares(Share* to, I shares) {
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(shares.a, shares.b), 0xd8);
    _mm256_storeu_si256((__m256i*)to, _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(words, 0xd8), 0xd8));
  }
  template <int M, int C>
  static INFENG_INLINE void add_shares(I (&acc)[M][C], const int8_t* lines, int step, const Share* b, int stride) {
    INFENG_EACH (g, kLanes / 4)
      INFENG_EACH (c, C) {
        const __m256i_u* line = (const __m256i_u*)(lines + g * step + c * kLine);
        __m256i low, high;
        __asm__(
            "vmovdqu %[w0], %[low]\n\t"
            "vmovdqu %[w1], %[high]\n\t"
            "vpsllw $8, %[low], %[low]\n\t"
            "vpsllw $8, %[high], %[high]\n\t"
            "vpsraw $8, %[low], %[low]\n\t"
            "vpsraw $8, %[high], %[high]"
            : [low] "=&x"(low), [high] "=&x"(high)
            : [w0] "m"(line[0]), [w1] "m"(line[1]));
        INFENG_EACH (m, M) add_words(acc[m][c], low, high, b + m * stride + 4 * g);
        __asm__(
            "vmovdqu %[w0], %[low]\n\t"
            "vmovdqu %[w1], %[high]\n\t"
            "vpsraw $8, %[low], %[low]\n\t"
            "vpsraw $8, %[high], %[high]"
            : [low] "=&x"(low), [high] "=&x"(high)
            : [w0] "m"(line[0]), [w1] "m"(line[1]));
        INFENG_EACH (m, M) add_words(acc[m][c], low, high, b + m * stride + 4 * g + 2);
      }
  }

  // Sums of 16 tokens stay below 2^15: 8 * 15 * 127 = 15240.
  template <int M, int C>
  static INFENG_INLINE void add_nibbles(I (&acc)[M][C], const uint8_t* lines, int step, const int8_t* b, int stride) {
    INFENG_EACH (c, C) {
      __m256i pairs[M][2];
      INFENG_EACH (g, kLanes / 4) {
        const __m256i v = half(lines + g * step + c * (kLine / 2), 0);
        const __m256i low = low_nibbles(v), high = low_nibbles(_mm256_srli_epi16(v, 4));
        INFENG_EACH (m, M) row_pairs(g == 0, pairs[m], low, high, b + m * stride, 4 * g);
      }
      INFENG_EACH (m, M) acc[m][c] = iadd(acc[m][c], {widen(pairs[m][0]), widen(pairs[m][1])});
    }
  }

  // Low and high nibbles take two passes over a panel's lines, so that both halves of a line share a broadcast of x.
  template <int L, int M, int P, class Each>
  static INFENG_INLINE void dot_nibbles(I (&acc)[M][P], const uint8_t* const (&w)[P], const int8_t* const (&x)[M],
                                        const int32_t (&sum)[M], const Each& each) {
    static_assert(L <= 4 || L == 8, "more than eight pairs would overflow int16");
    int32_t start[M];
    zero_points<3>(start, sum);
    INFENG_EACH (p, P) {
      __m256i pairs[M][2];
      INFENG_EACH (m, M) pairs[m][0] = pairs[m][1] = _mm256_setzero_si256();
      INFENG_EACH (l, L) {
        const uint8_t* line = w[p] + l * kLine;
        spread<2 * P>(2 * p, L, l, each);
        add_pairs(pairs, low_nibbles(half(line, 0)), low_nibbles(half(line, 1)), x, l);
      }
      INFENG_EACH (m, M) {
        if constexpr (L == 8) {
          acc[m][p] = iadd(iset(start[m]), {widen(pairs[m][0]), widen(pairs[m][1])});
          pairs[m][0] = pairs[m][1] = _mm256_setzero_si256();
        }
      }
      INFENG_EACH (l, L) {
        const uint8_t* line = w[p] + l * kLine;
        spread<2 * P>(2 * p + 1, L, l, each);
        add_pairs(pairs, low_nibbles(_mm256_srli_epi16(half(line, 0), 4)),
                  low_nibbles(_mm256_srli_epi16(half(line, 1), 4)), x, L + l);
      }
      INFENG_EACH (m, M) {
        acc[m][p] = iadd(L == 8 ? acc[m][p] : iset(start[m]), {widen(pairs[m][0]), widen(pairs[m][1])});
      }
    }
  }

  // Widening pairs also multiplies them by the sub-scale at no cost: by (s, s) instead of (1, 1). Units of 5 bits reach
  // the limit of int16 after four lines (31496), units of 6 bits after two (32004).
  template <int Bits>
  static INFENG_INLINE void unpack_lines(const uint8_t* packed, const SubScales&, uint8_t* lines) {
    INFENG_EACH (k, 2)
      INFENG_EACH (l, 8)
        INFENG_EACH (h, 2)
          _mm256_storeu_si256((__m256i*)(lines + (8 * k + l) * kLine) + h,
                              units<Bits>(packed + k * Bits * kLine, l, h));
  }

  template <int Bits, int M, int P, class Each>
  static INFENG_INLINE void dot_scaled(I (&acc)[M][P], const uint8_t* const (&w)[P], const SubScales* const (&s)[P],
                                       const int8_t* const (&x)[M], const int32_t* minus, const Each& each) {
    dot_units<Bits>(acc, s, x, minus, each,
                    [&](int p, int l, int h) INFENG_INLINE_LAMBDA { return half(w[p] + l * kLine, h); });
  }

  template <int Bits, int M, int P, class Each>
  static INFENG_INLINE void dot_packed(I (&acc)[M][P], const uint8_t* const (&w)[P], const SubScales* const (&s)[P],
                                       const int8_t* const (&x)[M], const int32_t* minus, const Each& each) {
    dot_units<Bits>(
        acc, s, x, minus, [&](int l) INFENG_INLINE_LAMBDA { spread_packed<Bits, 1>(0, l, each); },
        [&](int p, int l, int h) INFENG_INLINE_LAMBDA { return units<Bits>(w[p] + l / 8 * Bits * kLine, l % 8, h); });
  }

 protected:
  // pairs[m] += the products of x[m][4 l ..] with the two halves of a line.
  template <int M>
  static INFENG_INLINE void add_pairs(__m256i (&pairs)[M][2], __m256i a, __m256i b, const int8_t* const (&x)[M],
                                      int l) {
    forget_loads();
    INFENG_EACH (m, M) {
      const __m256i v = four(x[m] + 4 * l);
      pairs[m][0] = _mm256_add_epi16(pairs[m][0], _mm256_maddubs_epi16(a, v));
      pairs[m][1] = _mm256_add_epi16(pairs[m][1], _mm256_maddubs_epi16(b, v));
      settle(pairs[m][0]);
      settle(pairs[m][1]);
    }
  }

 private:
  // unit(p, l, h) is half h of line l of panel p.
  template <int Bits, int M, int P, class Each, class Unit>
  static INFENG_INLINE void dot_units(I (&acc)[M][P], const SubScales* const (&s)[P], const int8_t* const (&x)[M],
                                      const int32_t* minus, const Each& each, const Unit& unit) {
    constexpr int kLines = Bits == 4 ? 8 : Bits == 5 ? 4 : 2;  // lines between two widenings
    INFENG_EACH (from, 16 / kLines) {
      __m256i pairs[M][P][2];
      INFENG_EACH (i, kLines) {
        const int l = from * kLines + i;
        each(l);
        forget_loads();
        if constexpr (P == 1) {
          const __m256i a = unit(0, l, 0), b = unit(0, l, 1);
          INFENG_EACH (m, M) row_pairs(i == 0, pairs[m][0], a, b, x[m], 4 * l);
        } else {
          __m256i v[M];
          INFENG_EACH (m, M) v[m] = four(x[m] + 4 * l);
          INFENG_EACH (p, P)
            INFENG_EACH (h, 2) {
              const __m256i u = unit(p, l, h);
              INFENG_EACH (m, M) one_pair(i == 0, pairs[m][p][h], u, v[m]);
            }
        }
      }
      INFENG_EACH (m, M)
        INFENG_EACH (p, P) {
          const __m256i* scale = (const __m256i*)s[p]->s[from * kLines / 8];
          const I products = {_mm256_madd_epi16(pairs[m][p][0], _mm256_load_si256(scale)),
                              _mm256_madd_epi16(pairs[m][p][1], _mm256_load_si256(scale + 1))};
          acc[m][p] = from == 0 ? products : iadd(acc[m][p], products);
        }
    }
    INFENG_EACH (m, M)
      INFENG_EACH (p, P) acc[m][p] = iadd(acc[m][p], zero_points(*s[p], minus[m]));
  }
  // total += the products of x[0..3] with half a line: magnitudes times x with the line's signs. In assembly, because
  // GCC copies each sum to another register and back.
  static INFENG_INLINE void add_quads(__m256i& total, __m256i magnitude, __m256i line, const int8_t* x) {
    __m256i v;
    __asm__(
        "vpbroadcastd %[x], %[v]\n\t"
        "vpsignb %[line], %[v], %[v]\n\t"
        "vpmaddubsw %[v], %[magnitude], %[v]\n\t"
        "vpmaddwd %[ones], %[v], %[v]\n\t"
        "vpaddd %[v], %[total], %[total]"
        : [total] "+x"(total), [v] "=&x"(v)
        : [magnitude] "x"(magnitude), [line] "x"(line), [ones] "x"(_mm256_set1_epi16(1)),
          [x] "m"(*(const int8_t(*)[4])x));
  }
  // sum += the products of two words of x with those of both halves of a line. In assembly, because all 16 registers
  // are in use.
  static INFENG_INLINE void add_words(I& sum, __m256i a, __m256i b, const int16_t* x) {
    __m256i v, product;
    __asm__(
        "vpbroadcastd %[x], %[v]\n\t"
        "vpmaddwd %[v], %[a], %[product]\n\t"
        "vpmaddwd %[v], %[b], %[v]\n\t"
        "vpaddd %[product], %[low], %[low]\n\t"
        "vpaddd %[v], %[high], %[high]"
        : [low] "+x"(sum.a), [high] "+x"(sum.b), [v] "=&x"(v), [product] "=&x"(product)
        : [a] "x"(a), [b] "x"(b), [x] "m"(*(const int16_t(*)[2])x));
  }
  // pairs += (or =, if `first`) the products of x with two halves of a line. In assembly, because GCC copies sums from
  // register to register until it has none left.
  static INFENG_INLINE void row_pairs(bool first, __m256i (&pairs)[2], __m256i a, __m256i b, const int8_t* x,
                                      const int at) {
    if (first) {
      const __m256i v = four(x + at);
      pairs[0] = _mm256_maddubs_epi16(a, v);
      pairs[1] = _mm256_maddubs_epi16(b, v);
      return;
    }
    __m256i v, product;
    __asm__(
        "vpbroadcastd %c[at](%[x]), %[v]\n\t"
        "vpmaddubsw %[v], %[a], %[product]\n\t"
        "vpmaddubsw %[v], %[b], %[v]\n\t"
        "vpaddw %[product], %[low], %[low]\n\t"
        "vpaddw %[v], %[high], %[high]"
        : [low] "+x"(pairs[0]), [high] "+x"(pairs[1]), [v] "=&x"(v), [product] "=&x"(product)
        : [a] "x"(a), [b] "x"(b), [x] "r"(x), [at] "i"(at), "m"(*(const int8_t(*)[kGroup])x));
  }
  static INFENG_INLINE void one_pair(bool first, __m256i& pairs, __m256i u, __m256i x) {
    if (first) {
      pairs = _mm256_maddubs_epi16(u, x);
      return;
    }
    __m256i product;
    __asm__(
        "vpmaddubsw %[x], %[u], %[product]\n\t"
        "vpaddw %[product], %[pairs], %[pairs]"
        : [pairs] "+x"(pairs), [product] "=&x"(product)
        : [u] "x"(u), [x] "x"(x));
  }
};

#ifdef __AVXVNNI__
// `vpdpbusd` adds four u8 * s8 products to an int32 without saturation, so dots are exact; the accumulator starts with
// the contribution of the zero point.
struct AvxVnni : Base {
  static constexpr int kRows = 6;
  static constexpr int kBlockRows = 6;
  static constexpr int kBlockPanels = 1;
  static constexpr int kScaledRows = 6;
  static constexpr int kPackedRows = 6;
  static constexpr int kPackedMost = 18;
  static constexpr int kScaledPanels = 1;
  static constexpr int packed_panels(int) { return 2; }

  template <int Bits, int M, int P, class Each>
  static INFENG_INLINE void dot_lines(I (&acc)[M][P], const uint8_t* const (&w)[P], int lines,
                                      const int8_t* const (&x)[M], const int32_t (&sum)[M], const Each& each) {
    int32_t start[M];
    Base::zero_points<Bits - 1>(start, sum);
    INFENG_EACH (p, P) {
      __m256i total[M][2];
      INFENG_EACH (m, M) total[m][0] = total[m][1] = _mm256_set1_epi32(start[m]);
      INFENG_UNROLL_LINES
      for (int l = 0; l < lines; ++l) {
        spread<P>(p, lines, l, each);
        add_products(total, half(w[p] + l * kLine, 0), half(w[p] + l * kLine, 1), x, l);
      }
      INFENG_EACH (m, M) acc[m][p] = {total[m][0], total[m][1]};
    }
  }

  using Share = uint8_t;
  static INFENG_INLINE void store_shares(Share* to, I shares) {
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(shares.a, shares.b), 0xd8);
    _mm_storeu_si128((__m128i*)to, _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
  }
  template <int M, int C>
  static INFENG_INLINE void add_shares(I (&acc)[M][C], const int8_t* lines, int step, const Share* b, int stride) {
    INFENG_EACH (g, kLanes / 4)
      INFENG_EACH (c, C) {
        const __m256i low = half(lines + g * step + c * kLine, 0), high = half(lines + g * step + c * kLine, 1);
        INFENG_EACH (m, M) {
          const __m256i v = four((const int8_t*)b + m * stride + 4 * g);
          acc[m][c] = {_mm256_dpbusd_avx_epi32(acc[m][c].a, v, low), _mm256_dpbusd_avx_epi32(acc[m][c].b, v, high)};
        }
      }
  }

  template <int M, int C>
  static INFENG_INLINE void add_nibbles(I (&acc)[M][C], const uint8_t* lines, int step, const int8_t* b, int stride) {
    INFENG_EACH (g, kLanes / 4)
      INFENG_EACH (c, C) {
        const __m256i v = half(lines + g * step + c * (kLine / 2), 0);
        const __m256i low = low_nibbles(v), high = low_nibbles(_mm256_srli_epi16(v, 4));
        INFENG_EACH (m, M) {
          const __m256i x = four(b + m * stride + 4 * g);
          acc[m][c] = {_mm256_dpbusd_avx_epi32(acc[m][c].a, low, x), _mm256_dpbusd_avx_epi32(acc[m][c].b, high, x)};
        }
      }
  }

  // With few rows, high nibbles are not shifted: their sum is 16 times too large and divided once per group, which
  // saves a shift per line.
  template <int L, int M, int P, class Each>
  static INFENG_INLINE void dot_nibbles(I (&acc)[M][P], const uint8_t* const (&w)[P], const int8_t* const (&x)[M],
                                        const int32_t (&sum)[M], const Each& each) {
    constexpr bool kTwoChains = M <= 3;
    int32_t start[M];
    Base::zero_points<3>(start, sum);
    INFENG_EACH (p, P) {
      __m256i total[M][2];
      INFENG_EACH (m, M) total[m][0] = total[m][1] = _mm256_set1_epi32(start[m]);
      INFENG_EACH (l, L) {
        const uint8_t* line = w[p] + l * kLine;
        spread<2 * P>(2 * p, L, l, each);
        add_products(total, low_nibbles(half(line, 0)), low_nibbles(half(line, 1)), x, l);
      }
      if constexpr (kTwoChains) {
        INFENG_EACH (m, M) {
          acc[m][p] = {total[m][0], total[m][1]};
          total[m][0] = total[m][1] = _mm256_setzero_si256();
        }
      }
      INFENG_EACH (l, L) {
        const uint8_t* line = w[p] + l * kLine;
        spread<2 * P>(2 * p + 1, L, l, each);
        add_products(total, high_nibbles<kTwoChains>(half(line, 0)), high_nibbles<kTwoChains>(half(line, 1)), x, L + l);
      }
      INFENG_EACH (m, M) {
        if constexpr (kTwoChains) {
          acc[m][p] = iadd(acc[m][p], {_mm256_srai_epi32(total[m][0], 4), _mm256_srai_epi32(total[m][1], 4)});
        } else {
          acc[m][p] = {total[m][0], total[m][1]};
        }
      }
    }
  }

  // A unit times its sub-scale is at most 252, so one 16-bit product scales two units without a carry.
  template <int Bits>
  static INFENG_INLINE void unpack_lines(const uint8_t* packed, const SubScales& s, uint8_t* lines) {
    INFENG_EACH (l, 16)
      INFENG_EACH (h, 2) _mm256_storeu_si256((__m256i*)(lines + l * kLine) + h, scaled<Bits>(packed, s, l, h));
  }

  template <int Bits, int M, int P, class Each>
  static INFENG_INLINE void dot_scaled(I (&acc)[M][P], const uint8_t* const (&w)[P], const SubScales* const (&s)[P],
                                       const int8_t* const (&x)[M], const int32_t* minus, const Each& each) {
    INFENG_EACH (p, P) {
      __m256i total[M][2];
      zero_points(total, *s[p], minus);
      INFENG_EACH (l, 16) {
        spread<P>(p, 16, l, each);
        add_products(total, half(w[p] + l * kLine, 0), half(w[p] + l * kLine, 1), x, l);
      }
      INFENG_EACH (m, M) acc[m][p] = {total[m][0], total[m][1]};
    }
  }

  // With few rows, the sums over 32 k are scaled instead of their 8 lines.
  template <int Bits, int M, int P, class Each>
  static INFENG_INLINE void dot_packed(I (&acc)[M][P], const uint8_t* const (&w)[P], const SubScales* const (&s)[P],
                                       const int8_t* const (&x)[M], const int32_t* minus, const Each& each) {
    constexpr bool kLate = M <= 3;
    INFENG_EACH (p, P) {
      __m256i total[M][2];
      zero_points(total, *s[p], minus);
      INFENG_EACH (k, 2) {
        __m256i sum[M][2];
        if constexpr (kLate)
          INFENG_EACH (m, M) sum[m][0] = sum[m][1] = _mm256_setzero_si256();
        INFENG_EACH (i, 8) {
          const int l = 8 * k + i;
          spread_packed<Bits, P>(p, l, each);
          const __m256i a = kLate ? units<Bits>(w[p] + k * Bits * kLine, i, 0) : scaled<Bits>(w[p], *s[p], l, 0);
          const __m256i b = kLate ? units<Bits>(w[p] + k * Bits * kLine, i, 1) : scaled<Bits>(w[p], *s[p], l, 1);
          add_products(kLate ? sum : total, a, b, x, l);
        }
        if constexpr (kLate)
          INFENG_EACH (h, 2) {
            const __m256i pairs = _mm256_load_si256((const __m256i*)s[p]->s[k] + h);
            const __m256i scale = _mm256_and_si256(pairs, _mm256_set1_epi32(0xffff));
            INFENG_EACH (m, M) total[m][h] = _mm256_add_epi32(total[m][h], _mm256_mullo_epi32(sum[m][h], scale));
          }
      }
      INFENG_EACH (m, M) acc[m][p] = {total[m][0], total[m][1]};
    }
  }

 private:
  template <int M>
  static INFENG_INLINE void zero_points(__m256i (&total)[M][2], const SubScales& s, const int32_t* minus) {
    INFENG_EACH (m, M) {
      const I start = Base::zero_points(s, minus[m]);
      total[m][0] = start.a;
      total[m][1] = start.b;
    }
  }
  template <int Bits>
  static INFENG_INLINE __m256i scaled(const uint8_t* packed, const SubScales& s, int l, int h) {
    return _mm256_mullo_epi16(units<Bits>(packed + l / 8 * Bits * kLine, l % 8, h),
                              _mm256_load_si256((const __m256i*)s.s[l / 8] + h));
  }
  template <bool InPlace>
  static INFENG_INLINE __m256i high_nibbles(__m256i v) {
    return InPlace ? _mm256_and_si256(v, _mm256_set1_epi8(-16)) : low_nibbles(_mm256_srli_epi16(v, 4));
  }
  // total[m] += the products of x[m][4 l ..] with the two halves of a line.
  template <int M>
  static INFENG_INLINE void add_products(__m256i (&total)[M][2], __m256i a, __m256i b, const int8_t* const (&x)[M],
                                         int l) {
    forget_loads();
    INFENG_EACH (m, M) {
      const __m256i v = four(x[m] + 4 * l);
      total[m][0] = _mm256_dpbusd_avx_epi32(total[m][0], a, v);
      total[m][1] = _mm256_dpbusd_avx_epi32(total[m][1], b, v);
    }
  }
};
#endif

}  // namespace
}  // namespace infeng::avx2
#endif  // INFENG_SIMD_AVX2_H
