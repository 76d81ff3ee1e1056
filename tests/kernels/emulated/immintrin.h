// The AVX-512 instructions of simd/avx512.h as loops, for processors without them: with this folder first on the
// include path, a kernel source compiles for AVX2 with equal results. Each function is named after the intrinsic that
// it stands for, whose definition is in Intel's Intrinsics Guide. SPDX-License-Identifier: Apache-2.0
#ifndef INFENG_EMULATED_IMMINTRIN_H
#define INFENG_EMULATED_IMMINTRIN_H

#include_next <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

// Calls, because thousands of inlined loops would take the compiler an hour.
#define INFENG_EMULATED inline __attribute__((noinline))

namespace infeng_emulated {

// The elements of a vector.
template <class T, class V>
struct Elements {
  T at[sizeof(V) / sizeof(T)];
  Elements(V v) { memcpy(at, &v, sizeof v); }
  T operator[](int i) const { return at[i]; }
};
// A vector of 64 bytes (or as many as R has) whose element i is f(i).
template <class R, class T, class F>
inline R made(const F& f) {
  T elements[sizeof(R) / sizeof(T)];
  for (int i = 0; i < int(sizeof(R) / sizeof(T)); ++i) elements[i] = T(f(i));
  R r;
  memcpy(&r, elements, sizeof r);
  return r;
}
template <class T, class F>
INFENG_EMULATED __m512i ints(const F& f) {
  return made<__m512i, T>(f);
}
template <class F>
INFENG_EMULATED __m512 floats(const F& f) {
  return made<__m512, float>(f);
}
template <class R>
inline R loaded(const void* from) {
  R r;
  memcpy(&r, from, sizeof r);
  return r;
}

template <class R>
INFENG_EMULATED void stored(void* to, R v) {
  memcpy(to, &v, sizeof v);
}

INFENG_EMULATED __m512i zero() {
  return ints<int8_t>([](int) { return 0; });
}

// --- integers: op(a[i], b[i]) ---
#define INFENG_EMULATED_PAIR(name, T, expression)        \
  INFENG_EMULATED __m512i name(__m512i va, __m512i vb) { \
    const Elements<T, __m512i> a(va), b(vb);             \
    return ints<T>([&](int i) { return expression; });   \
  }
INFENG_EMULATED_PAIR(add_epi8, uint8_t, a[i] + b[i])
INFENG_EMULATED_PAIR(add_epi16, uint16_t, a[i] + b[i])
INFENG_EMULATED_PAIR(add_epi32, uint32_t, a[i] + b[i])
INFENG_EMULATED_PAIR(sub_epi8, uint8_t, a[i] - b[i])
INFENG_EMULATED_PAIR(sub_epi32, uint32_t, a[i] - b[i])
INFENG_EMULATED_PAIR(mullo_epi16, uint16_t, uint32_t(a[i]) * b[i])
INFENG_EMULATED_PAIR(mullo_epi32, uint32_t, a[i] * b[i])
INFENG_EMULATED_PAIR(min_epi32, int32_t, a[i] < b[i] ? a[i] : b[i])
INFENG_EMULATED_PAIR(max_epi32, int32_t, a[i] > b[i] ? a[i] : b[i])
INFENG_EMULATED_PAIR(and_si512, uint64_t, a[i] & b[i])
INFENG_EMULATED_PAIR(or_si512, uint64_t, a[i] | b[i])
INFENG_EMULATED_PAIR(xor_si512, uint64_t, a[i] ^ b[i])
// Bytes of a chosen by b, within each 16.
INFENG_EMULATED_PAIR(shuffle_epi8, uint8_t, b[i] & 0x80 ? 0 : a[(i & ~15) + (b[i] & 15)])
#undef INFENG_EMULATED_PAIR

INFENG_EMULATED __m512i madd_epi16(__m512i va, __m512i vb) {
  const Elements<int16_t, __m512i> a(va), b(vb);
  return ints<uint32_t>([&](int i) { return uint32_t(a[2 * i] * b[2 * i]) + uint32_t(a[2 * i + 1] * b[2 * i + 1]); });
}
INFENG_EMULATED __m512i maddubs_epi16(__m512i va, __m512i vb) {
  const Elements<uint8_t, __m512i> a(va);
  const Elements<int8_t, __m512i> b(vb);
  return ints<int16_t>([&](int i) {
    const int sum = a[2 * i] * b[2 * i] + a[2 * i + 1] * b[2 * i + 1];
    return sum > 32767 ? 32767 : sum < -32768 ? -32768 : sum;
  });
}
INFENG_EMULATED __m512i dpbusd_epi32(__m512i sums, __m512i va, __m512i vb) {
  const Elements<uint32_t, __m512i> sum(sums);
  const Elements<uint8_t, __m512i> a(va);
  const Elements<int8_t, __m512i> b(vb);
  return ints<uint32_t>([&](int i) {
    uint32_t total = sum[i];
    for (int k = 4 * i; k < 4 * i + 4; ++k) total += uint32_t(a[k] * b[k]);
    return total;
  });
}
// Each byte of a times the bit matrix of its 64 bits of b: bit i of the result is the parity of byte 7 - i of the
// matrix and the byte.
INFENG_EMULATED __m512i gf2p8affine_epi64_epi8(__m512i va, __m512i vb, int constant) {
  const Elements<uint8_t, __m512i> a(va), b(vb);
  return ints<uint8_t>([&](int i) {
    unsigned byte = 0;
    for (int bit = 0; bit < 8; ++bit) byte |= unsigned(__builtin_parity(unsigned(b[(i & ~7) + 7 - bit] & a[i]))) << bit;
    return byte ^ unsigned(constant);
  });
}

// --- shifts ---
INFENG_EMULATED __m512i slli_epi16(__m512i v, unsigned n) {
  const Elements<uint16_t, __m512i> a(v);
  return ints<uint16_t>([&](int i) { return n > 15 ? 0 : a[i] << n; });
}
INFENG_EMULATED __m512i srli_epi16(__m512i v, unsigned n) {
  const Elements<uint16_t, __m512i> a(v);
  return ints<uint16_t>([&](int i) { return n > 15 ? 0 : a[i] >> n; });
}
INFENG_EMULATED __m512i srai_epi16(__m512i v, unsigned n) {
  const Elements<int16_t, __m512i> a(v);
  return ints<int16_t>([&](int i) { return a[i] >> (n > 15 ? 15 : n); });
}
INFENG_EMULATED __m512i slli_epi32(__m512i v, unsigned n) {
  const Elements<uint32_t, __m512i> a(v);
  return ints<uint32_t>([&](int i) { return n > 31 ? 0 : a[i] << n; });
}
INFENG_EMULATED __m512i srli_epi32(__m512i v, unsigned n) {
  const Elements<uint32_t, __m512i> a(v);
  return ints<uint32_t>([&](int i) { return n > 31 ? 0 : a[i] >> n; });
}
INFENG_EMULATED __m512i srai_epi32(__m512i v, unsigned n) {
  const Elements<int32_t, __m512i> a(v);
  return ints<int32_t>([&](int i) { return a[i] >> (n > 31 ? 31 : n); });
}

// --- constants, loads, stores ---
INFENG_EMULATED __m512i set1_epi8(char n) {
  return ints<int8_t>([&](int) { return n; });
}
INFENG_EMULATED __m512i set1_epi16(short n) {
  return ints<int16_t>([&](int) { return n; });
}
INFENG_EMULATED __m512i set1_epi32(int n) {
  return ints<int32_t>([&](int) { return n; });
}
INFENG_EMULATED __m512i set1_epi64(long long n) {
  return ints<int64_t>([&](int) { return n; });
}
INFENG_EMULATED __m512 set1_ps(float x) {
  return floats([&](int) { return x; });
}
INFENG_EMULATED __m512 setzero_ps() { return set1_ps(0.0f); }
INFENG_EMULATED __m512 maskz_loadu_ps(__mmask16 mask, const float* x) {
  return floats([&](int i) { return mask >> i & 1 ? x[i] : 0.0f; });
}
INFENG_EMULATED void mask_storeu_ps(float* y, __mmask16 mask, __m512 v) {
  const Elements<float, __m512> a(v);
  for (int i = 0; i < 16; ++i)
    if (mask >> i & 1) y[i] = a[i];
}
INFENG_EMULATED __m128i maskz_loadu_epi8(__mmask16 mask, const void* x) {
  return made<__m128i, int8_t>([&](int i) { return mask >> i & 1 ? ((const int8_t*)x)[i] : 0; });
}
INFENG_EMULATED __m256i maskz_loadu_epi16(__mmask16 mask, const void* x) {
  return made<__m256i, int16_t>([&](int i) { return mask >> i & 1 ? ((const int16_t*)x)[i] : 0; });
}

// --- floats ---
#define INFENG_EMULATED_FLOATS(name, expression)      \
  INFENG_EMULATED __m512 name(__m512 va, __m512 vb) { \
    const Elements<float, __m512> a(va), b(vb);       \
    return floats([&](int i) { return expression; }); \
  }
INFENG_EMULATED_FLOATS(add_ps, a[i] + b[i])
INFENG_EMULATED_FLOATS(sub_ps, a[i] - b[i])
INFENG_EMULATED_FLOATS(mul_ps, a[i] * b[i])
INFENG_EMULATED_FLOATS(div_ps, a[i] / b[i])
INFENG_EMULATED_FLOATS(min_ps, a[i] < b[i] ? a[i] : b[i])
INFENG_EMULATED_FLOATS(max_ps, a[i] > b[i] ? a[i] : b[i])
#undef INFENG_EMULATED_FLOATS
INFENG_EMULATED __m512 fmadd_ps(__m512 va, __m512 vb, __m512 vc) {
  const Elements<float, __m512> a(va), b(vb), c(vc);
  return floats([&](int i) { return __builtin_fmaf(a[i], b[i], c[i]); });
}
INFENG_EMULATED __m512 fmsub_ps(__m512 va, __m512 vb, __m512 vc) {
  const Elements<float, __m512> a(va), b(vb), c(vc);
  return floats([&](int i) { return __builtin_fmaf(a[i], b[i], -c[i]); });
}
INFENG_EMULATED __m512 sqrt_ps(__m512 v) {
  const Elements<float, __m512> a(v);
  return floats([&](int i) { return __builtin_sqrtf(a[i]); });
}
INFENG_EMULATED __m512 abs_ps(__m512 v) {
  const Elements<float, __m512> a(v);
  return floats([&](int i) { return __builtin_fabsf(a[i]); });
}
INFENG_EMULATED __m512i abs_epi8(__m512i v) {
  const Elements<int8_t, __m512i> a(v);
  return ints<uint8_t>([&](int i) { return a[i] < 0 ? -a[i] : a[i]; });
}
// a * 2^floor(b), where the mask has a bit.
INFENG_EMULATED __m512 maskz_scalef_ps(__mmask16 mask, __m512 va, __m512 vb) {
  const Elements<float, __m512> a(va), b(vb);
  return floats([&](int i) { return mask >> i & 1 ? __builtin_ldexpf(a[i], int(__builtin_floorf(b[i]))) : 0.0f; });
}
INFENG_EMULATED __mmask16 cmp_ps_mask(__m512 va, __m512 vb, int how) {
  const Elements<float, __m512> a(va), b(vb);
  unsigned mask = 0;
  for (int i = 0; i < 16; ++i) mask |= unsigned(how == _CMP_LT_OQ ? a[i] < b[i] : a[i] >= b[i]) << i;
  return __mmask16(mask);
}
INFENG_EMULATED __m512 mask_blend_ps(__mmask16 mask, __m512 va, __m512 vb) {
  const Elements<float, __m512> a(va), b(vb);
  return floats([&](int i) { return mask >> i & 1 ? b[i] : a[i]; });
}
INFENG_EMULATED __m512 mask_sub_ps(__m512 from, __mmask16 mask, __m512 va, __m512 vb) {
  const Elements<float, __m512> other(from), a(va), b(vb);
  return floats([&](int i) { return mask >> i & 1 ? a[i] - b[i] : other[i]; });
}
INFENG_EMULATED __m512i mask_sub_epi8(__m512i from, __mmask64 mask, __m512i va, __m512i vb) {
  const Elements<uint8_t, __m512i> other(from), a(va), b(vb);
  return ints<uint8_t>([&](int i) { return mask >> i & 1 ? a[i] - b[i] : other[i]; });
}
INFENG_EMULATED __m512i mask_srli_epi16(__m512i from, uint32_t mask, __m512i v, unsigned n) {
  const Elements<uint16_t, __m512i> other(from), a(v);
  return ints<uint16_t>([&](int i) { return mask >> i & 1 ? (n > 15 ? 0 : a[i] >> n) : other[i]; });
}
INFENG_EMULATED __mmask64 movepi8_mask(__m512i v) {
  const Elements<int8_t, __m512i> a(v);
  __mmask64 mask = 0;
  for (int i = 0; i < 64; ++i) mask |= __mmask64(a[i] < 0) << i;
  return mask;
}

// --- conversions and parts ---
INFENG_EMULATED __m512i cvt_roundps_epi32(__m512 v) {
  const Elements<float, __m512> a(v);
  return ints<int32_t>([&](int i) { return int32_t(__builtin_rintf(a[i])); });
}
INFENG_EMULATED __m512 cvtepi32_ps(__m512i v) {
  const Elements<int32_t, __m512i> a(v);
  return floats([&](int i) { return float(a[i]); });
}
INFENG_EMULATED __m512i cvtepi8_epi32(__m128i v) {
  const Elements<int8_t, __m128i> a(v);
  return ints<int32_t>([&](int i) { return a[i]; });
}
INFENG_EMULATED __m512i cvtepu16_epi32(__m256i v) {
  const Elements<uint16_t, __m256i> a(v);
  return ints<int32_t>([&](int i) { return a[i]; });
}
INFENG_EMULATED __m128i cvtepi32_epi8(__m512i v) {
  const Elements<int32_t, __m512i> a(v);
  return made<__m128i, int8_t>([&](int i) { return a[i]; });
}
INFENG_EMULATED __m256i cvtepi32_epi16(__m512i v) {
  const Elements<int32_t, __m512i> a(v);
  return made<__m256i, int16_t>([&](int i) { return a[i]; });
}
INFENG_EMULATED __m512 cvtph_ps(__m256i v) {
  const Elements<__m128i, __m256i> half(v);
  const __m256 parts[2] = {_mm256_cvtph_ps(half[0]), _mm256_cvtph_ps(half[1])};
  return loaded<__m512>(parts);
}
INFENG_EMULATED __m256i cvtps_ph(__m512 v) {
  const Elements<__m256, __m512> half(v);
  const __m128i parts[2] = {_mm256_cvtps_ph(half[0], _MM_FROUND_TO_NEAREST_INT),
                            _mm256_cvtps_ph(half[1], _MM_FROUND_TO_NEAREST_INT)};
  return loaded<__m256i>(parts);
}
INFENG_EMULATED __m256 extractf32x8_ps(__m512 v, int part) { return Elements<__m256, __m512>(v)[part]; }
INFENG_EMULATED __m512i broadcast_i32x4(__m128i v) {
  return made<__m512i, __m128i>([&](int) { return v; });
}
INFENG_EMULATED __m512i broadcast_i64x4(__m256i v) {
  return made<__m512i, __m256i>([&](int) { return v; });
}
INFENG_EMULATED __m512 shuffle_f32x4(__m512 va, __m512 vb, int how) {
  const Elements<__m128, __m512> a(va), b(vb);
  return made<__m512, __m128>([&](int i) { return (i < 2 ? a : b)[how >> 2 * i & 3]; });
}
INFENG_EMULATED __m512 permute_ps(__m512 v, int how) {
  const Elements<float, __m512> a(v);
  return floats([&](int i) { return a[(i & ~3) + (how >> 2 * (i & 3) & 3)]; });
}
INFENG_EMULATED int reduce_add_epi32(__m512i v) {
  const Elements<uint32_t, __m512i> a(v);
  uint32_t sum = 0;
  for (int i = 0; i < 16; ++i) sum += a[i];
  return int(sum);
}
INFENG_EMULATED float reduce_max_ps(__m512 v) {
  const Elements<float, __m512> a(v);
  float most = a[0];
  for (int i = 1; i < 16; ++i) most = a[i] > most ? a[i] : most;
  return most;
}

}  // namespace infeng_emulated

// Function-like macros come after the functions, which have other names.
#undef _mm256_maskz_loadu_epi16
#define _mm256_maskz_loadu_epi16(mask, p) infeng_emulated::maskz_loadu_epi16(mask, p)
#undef _mm512_abs_epi8
#define _mm512_abs_epi8 infeng_emulated::abs_epi8
#undef _mm512_abs_ps
#define _mm512_abs_ps infeng_emulated::abs_ps
#undef _mm512_add_epi16
#define _mm512_add_epi16 infeng_emulated::add_epi16
#undef _mm512_add_epi32
#define _mm512_add_epi32 infeng_emulated::add_epi32
#undef _mm512_add_epi8
#define _mm512_add_epi8 infeng_emulated::add_epi8
#undef _mm512_add_ps
#define _mm512_add_ps infeng_emulated::add_ps
#undef _mm512_and_si512
#define _mm512_and_si512 infeng_emulated::and_si512
#undef _mm512_broadcast_i32x4
#define _mm512_broadcast_i32x4 infeng_emulated::broadcast_i32x4
#undef _mm512_broadcast_i64x4
#define _mm512_broadcast_i64x4 infeng_emulated::broadcast_i64x4
#undef _mm512_castps512_ps256
#define _mm512_castps512_ps256(v) infeng_emulated::extractf32x8_ps(v, 0)
#undef _mm512_castsi512_ps
#define _mm512_castsi512_ps(v) (__m512)(v)
#undef _mm512_cmp_ps_mask
#define _mm512_cmp_ps_mask infeng_emulated::cmp_ps_mask
#undef _mm512_cvt_roundps_epi32
#define _mm512_cvt_roundps_epi32(v, how) infeng_emulated::cvt_roundps_epi32(v)
#undef _mm512_cvtepi32_epi16
#define _mm512_cvtepi32_epi16 infeng_emulated::cvtepi32_epi16
#undef _mm512_cvtepi32_epi8
#define _mm512_cvtepi32_epi8 infeng_emulated::cvtepi32_epi8
#undef _mm512_cvtepi32_ps
#define _mm512_cvtepi32_ps infeng_emulated::cvtepi32_ps
#undef _mm512_cvtepi8_epi32
#define _mm512_cvtepi8_epi32 infeng_emulated::cvtepi8_epi32
#undef _mm512_cvtepu16_epi32
#define _mm512_cvtepu16_epi32 infeng_emulated::cvtepu16_epi32
#undef _mm512_cvtph_ps
#define _mm512_cvtph_ps infeng_emulated::cvtph_ps
#undef _mm512_cvtps_ph
#define _mm512_cvtps_ph(v, how) infeng_emulated::cvtps_ph(v)
#undef _mm512_div_ps
#define _mm512_div_ps infeng_emulated::div_ps
#undef _mm512_dpbusd_epi32
#define _mm512_dpbusd_epi32 infeng_emulated::dpbusd_epi32
#undef _mm512_extractf32x8_ps
#define _mm512_extractf32x8_ps infeng_emulated::extractf32x8_ps
#undef _mm512_fmadd_ps
#define _mm512_fmadd_ps infeng_emulated::fmadd_ps
#undef _mm512_fmsub_ps
#define _mm512_fmsub_ps infeng_emulated::fmsub_ps
#undef _mm512_gf2p8affine_epi64_epi8
#define _mm512_gf2p8affine_epi64_epi8 infeng_emulated::gf2p8affine_epi64_epi8
#undef _mm512_load_si512
#define _mm512_load_si512(p) infeng_emulated::loaded<__m512i>(p)
#undef _mm512_loadu_ps
#define _mm512_loadu_ps(p) infeng_emulated::loaded<__m512>(p)
#undef _mm512_loadu_si512
#define _mm512_loadu_si512(p) infeng_emulated::loaded<__m512i>(p)
#undef _mm512_madd_epi16
#define _mm512_madd_epi16 infeng_emulated::madd_epi16
#undef _mm512_maddubs_epi16
#define _mm512_maddubs_epi16 infeng_emulated::maddubs_epi16
#undef _mm512_mask_blend_ps
#define _mm512_mask_blend_ps infeng_emulated::mask_blend_ps
#undef _mm512_mask_srli_epi16
#define _mm512_mask_srli_epi16 infeng_emulated::mask_srli_epi16
#undef _mm512_mask_storeu_ps
#define _mm512_mask_storeu_ps infeng_emulated::mask_storeu_ps
#undef _mm512_mask_sub_epi8
#define _mm512_mask_sub_epi8 infeng_emulated::mask_sub_epi8
#undef _mm512_mask_sub_ps
#define _mm512_mask_sub_ps infeng_emulated::mask_sub_ps
#undef _mm512_maskz_loadu_ps
#define _mm512_maskz_loadu_ps infeng_emulated::maskz_loadu_ps
#undef _mm512_maskz_scalef_ps
#define _mm512_maskz_scalef_ps infeng_emulated::maskz_scalef_ps
#undef _mm512_max_epi32
#define _mm512_max_epi32 infeng_emulated::max_epi32
#undef _mm512_max_ps
#define _mm512_max_ps infeng_emulated::max_ps
#undef _mm512_min_epi32
#define _mm512_min_epi32 infeng_emulated::min_epi32
#undef _mm512_min_ps
#define _mm512_min_ps infeng_emulated::min_ps
#undef _mm512_movepi8_mask
#define _mm512_movepi8_mask infeng_emulated::movepi8_mask
#undef _mm512_mul_ps
#define _mm512_mul_ps infeng_emulated::mul_ps
#undef _mm512_mullo_epi16
#define _mm512_mullo_epi16 infeng_emulated::mullo_epi16
#undef _mm512_mullo_epi32
#define _mm512_mullo_epi32 infeng_emulated::mullo_epi32
#undef _mm512_or_si512
#define _mm512_or_si512 infeng_emulated::or_si512
#undef _mm512_permute_ps
#define _mm512_permute_ps infeng_emulated::permute_ps
#undef _mm512_reduce_add_epi32
#define _mm512_reduce_add_epi32 infeng_emulated::reduce_add_epi32
#undef _mm512_reduce_max_ps
#define _mm512_reduce_max_ps infeng_emulated::reduce_max_ps
#undef _mm512_set1_epi16
#define _mm512_set1_epi16 infeng_emulated::set1_epi16
#undef _mm512_set1_epi32
#define _mm512_set1_epi32 infeng_emulated::set1_epi32
#undef _mm512_set1_epi64
#define _mm512_set1_epi64 infeng_emulated::set1_epi64
#undef _mm512_set1_epi8
#define _mm512_set1_epi8 infeng_emulated::set1_epi8
#undef _mm512_set1_ps
#define _mm512_set1_ps infeng_emulated::set1_ps
#undef _mm512_setzero_ps
#define _mm512_setzero_ps infeng_emulated::setzero_ps
#undef _mm512_setzero_si512
#define _mm512_setzero_si512() infeng_emulated::zero()
#undef _mm512_shuffle_epi8
#define _mm512_shuffle_epi8 infeng_emulated::shuffle_epi8
#undef _mm512_shuffle_f32x4
#define _mm512_shuffle_f32x4 infeng_emulated::shuffle_f32x4
#undef _mm512_slli_epi16
#define _mm512_slli_epi16 infeng_emulated::slli_epi16
#undef _mm512_slli_epi32
#define _mm512_slli_epi32 infeng_emulated::slli_epi32
#undef _mm512_sqrt_ps
#define _mm512_sqrt_ps infeng_emulated::sqrt_ps
#undef _mm512_srai_epi16
#define _mm512_srai_epi16 infeng_emulated::srai_epi16
#undef _mm512_srai_epi32
#define _mm512_srai_epi32 infeng_emulated::srai_epi32
#undef _mm512_srli_epi16
#define _mm512_srli_epi16 infeng_emulated::srli_epi16
#undef _mm512_srli_epi32
#define _mm512_srli_epi32 infeng_emulated::srli_epi32
#undef _mm512_store_si512
#define _mm512_store_si512(p, v) infeng_emulated::stored(p, v)
#undef _mm512_storeu_ps
#define _mm512_storeu_ps(p, v) infeng_emulated::stored(p, v)
#undef _mm512_storeu_si512
#define _mm512_storeu_si512(p, v) infeng_emulated::stored(p, v)
#undef _mm512_sub_epi32
#define _mm512_sub_epi32 infeng_emulated::sub_epi32
#undef _mm512_sub_epi8
#define _mm512_sub_epi8 infeng_emulated::sub_epi8
#undef _mm512_sub_ps
#define _mm512_sub_ps infeng_emulated::sub_ps
#undef _mm512_xor_si512
#define _mm512_xor_si512 infeng_emulated::xor_si512
#undef _mm_maskz_loadu_epi8
#define _mm_maskz_loadu_epi8(mask, p) infeng_emulated::maskz_loadu_epi8(mask, p)
// The extensions for which a source is compiled: the header of the compiler must not see them.
#ifdef INFENG_EMULATED_VNNI
#define __AVX512VNNI__ 1
#endif
#ifdef INFENG_EMULATED_GFNI
#define __GFNI__ 1
#endif

// Barriers of the compiler around registers that this processor lacks.
#define __asm__(...) ((void)0)

#endif  // INFENG_EMULATED_IMMINTRIN_H
