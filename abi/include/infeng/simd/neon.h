// AArch64 backends of the vocabulary in vec.h: `Dotprod` needs NEON with the dot products of Armv8.2, `I8mm` also the
// int8 matrix products of Armv8.6. A vector takes four of the 32 registers. A dot product takes four k of a row from a
// lane of a register, so x is loaded 16 k at a time and never broadcast.
// SPDX-License-Identifier: Apache-2.0
#ifndef INFENG_SIMD_NEON_H
#define INFENG_SIMD_NEON_H

#include <arm_neon.h>
#include <infeng/simd/vec.h>

namespace infeng::neon {
namespace {

struct Base {
  struct F {
    float32x4_t a, b, c, d;  // lanes 0-3, 4-7, 8-11 and 12-15
  };
  struct I {
    int32x4_t a, b, c, d;
  };
  // A line: 16 outputs, each with four k.
  struct Line {
    uint8x16_t a, b, c, d;
  };
  static constexpr int kColumns = 1;
  static constexpr int kRows = 4;
  static constexpr int kBlockRows = 6;
  static constexpr int kScaledRows = 6;
  static constexpr int kPackedRows = 4;
  static constexpr int kPackedMost = 8;
  static constexpr int kBias = 0;
  // Two panels double the independent sums of one row.
  static constexpr int packed_panels(int rows) { return rows == 1 ? 2 : 1; }

  static INFENG_INLINE F zero() { return set(0.0f); }
  static INFENG_INLINE F set(float s) {
    const float32x4_t v = vdupq_n_f32(s);
    return {v, v, v, v};
  }
  static INFENG_INLINE F load(const float* x) {
    return {vld1q_f32(x), vld1q_f32(x + 4), vld1q_f32(x + 8), vld1q_f32(x + 12)};
  }
  static INFENG_INLINE F load(const float* x, int n) {
    if (n >= kLanes) return load(x);
    float lanes[kLanes] = {};
    copy(lanes, x, n);
    return load(lanes);
  }
  static INFENG_INLINE void store(float* y, F f) {
    vst1q_f32(y, f.a);
    vst1q_f32(y + 4, f.b);
    vst1q_f32(y + 8, f.c);
    vst1q_f32(y + 12, f.d);
  }
  static INFENG_INLINE void store(float* y, F f, int n) {
    if (n >= kLanes) return store(y, f);
    float lanes[kLanes];
    store(lanes, f);
    copy(y, lanes, n);
  }
  static INFENG_INLINE F add(F x, F y) {
    return {vaddq_f32(x.a, y.a), vaddq_f32(x.b, y.b), vaddq_f32(x.c, y.c), vaddq_f32(x.d, y.d)};
  }
  static INFENG_INLINE F sub(F x, F y) {
    return {vsubq_f32(x.a, y.a), vsubq_f32(x.b, y.b), vsubq_f32(x.c, y.c), vsubq_f32(x.d, y.d)};
  }
  static INFENG_INLINE F mul(F x, F y) {
    return {vmulq_f32(x.a, y.a), vmulq_f32(x.b, y.b), vmulq_f32(x.c, y.c), vmulq_f32(x.d, y.d)};
  }
  static INFENG_INLINE F div(F x, F y) {
    return {vdivq_f32(x.a, y.a), vdivq_f32(x.b, y.b), vdivq_f32(x.c, y.c), vdivq_f32(x.d, y.d)};
  }
  static INFENG_INLINE F fma(F x, F y, F z) {
    return {vfmaq_f32(z.a, x.a, y.a), vfmaq_f32(z.b, x.b, y.b), vfmaq_f32(z.c, x.c, y.c), vfmaq_f32(z.d, x.d, y.d)};
  }
  // NEON subtracts only the product, which would give 0 the other sign.
  static INFENG_INLINE F fms(F x, F y, F z) {
    return fma(x, y, {vnegq_f32(z.a), vnegq_f32(z.b), vnegq_f32(z.c), vnegq_f32(z.d)});
  }
  // Comparisons define min and max, also of NaN and of zeros; FMIN, FMAX and their variants for numbers differ there.
  static INFENG_INLINE F min(F x, F y) { return select_less(x, y, x, y); }
  static INFENG_INLINE F max(F x, F y) { return select_less(y, x, x, y); }
  static INFENG_INLINE F abs(F x) { return {vabsq_f32(x.a), vabsq_f32(x.b), vabsq_f32(x.c), vabsq_f32(x.d)}; }
  static INFENG_INLINE F sqrt(F x) { return {vsqrtq_f32(x.a), vsqrtq_f32(x.b), vsqrtq_f32(x.c), vsqrtq_f32(x.d)}; }
  static INFENG_INLINE F select_less(F x, F y, F yes, F no) {
    return {vbslq_f32(vcltq_f32(x.a, y.a), yes.a, no.a), vbslq_f32(vcltq_f32(x.b, y.b), yes.b, no.b),
            vbslq_f32(vcltq_f32(x.c, y.c), yes.c, no.c), vbslq_f32(vcltq_f32(x.d, y.d), yes.d, no.d)};
  }
  static INFENG_INLINE F exp2i(I n) { return {exp2i(n.a), exp2i(n.b), exp2i(n.c), exp2i(n.d)}; }
  static INFENG_INLINE F scale_above(F x, F least, F y, F bits, F) {
    return {scale_above(x.a, least.a, y.a, bits.a), scale_above(x.b, least.b, y.b, bits.b),
            scale_above(x.c, least.c, y.c, bits.c), scale_above(x.d, least.d, y.d, bits.d)};
  }
  static INFENG_INLINE float tree(F f) {
    const float32x4_t l4 = vaddq_f32(vaddq_f32(f.a, f.c), vaddq_f32(f.b, f.d));
    return vpadds_f32(vadd_f32(vget_low_f32(l4), vget_high_f32(l4)));
  }
  // The difference is a sum in which the other lane is negated.
  template <int H>
  static INFENG_INLINE F butterfly(F f) {
    if constexpr (H == 8) {
      return {vaddq_f32(f.a, f.c), vaddq_f32(f.b, f.d), vsubq_f32(f.a, f.c), vsubq_f32(f.b, f.d)};
    } else if constexpr (H == 4) {
      return {vaddq_f32(f.a, f.b), vsubq_f32(f.a, f.b), vaddq_f32(f.c, f.d), vsubq_f32(f.c, f.d)};
    } else {
      return {butterfly_of_four<H>(f.a), butterfly_of_four<H>(f.b), butterfly_of_four<H>(f.c),
              butterfly_of_four<H>(f.d)};
    }
  }
  static INFENG_INLINE float max_lanes(F f) { return vmaxvq_f32(vmaxq_f32(vmaxq_f32(f.a, f.c), vmaxq_f32(f.b, f.d))); }
  static INFENG_INLINE I load_i32(const float* x) { return integers(load(x)); }
  static INFENG_INLINE void store_i32(float* y, I n) {
    store(y, {vreinterpretq_f32_s32(n.a), vreinterpretq_f32_s32(n.b), vreinterpretq_f32_s32(n.c),
              vreinterpretq_f32_s32(n.d)});
  }
  static INFENG_INLINE I iset(int32_t n) {
    const int32x4_t v = vdupq_n_s32(n);
    return {v, v, v, v};
  }
  static INFENG_INLINE I iadd(I x, I y) {
    return {vaddq_s32(x.a, y.a), vaddq_s32(x.b, y.b), vaddq_s32(x.c, y.c), vaddq_s32(x.d, y.d)};
  }
  static INFENG_INLINE I imin(I x, I y) {
    return {vminq_s32(x.a, y.a), vminq_s32(x.b, y.b), vminq_s32(x.c, y.c), vminq_s32(x.d, y.d)};
  }
  static INFENG_INLINE I imax(I x, I y) {
    return {vmaxq_s32(x.a, y.a), vmaxq_s32(x.b, y.b), vmaxq_s32(x.c, y.c), vmaxq_s32(x.d, y.d)};
  }
  static INFENG_INLINE I rne(F f) {
    return {vcvtnq_s32_f32(f.a), vcvtnq_s32_f32(f.b), vcvtnq_s32_f32(f.c), vcvtnq_s32_f32(f.d)};
  }
  static INFENG_INLINE F to_float(I n) {
    return {vcvtq_f32_s32(n.a), vcvtq_f32_s32(n.b), vcvtq_f32_s32(n.c), vcvtq_f32_s32(n.d)};
  }
  static INFENG_INLINE int32_t isum(I n) { return vaddvq_s32(vaddq_s32(vaddq_s32(n.a, n.b), vaddq_s32(n.c, n.d))); }

  static INFENG_INLINE F load_f16(const uint16_t* h) { return widen_f16(vld1q_u16(h), vld1q_u16(h + 8)); }
  static INFENG_INLINE F load_f16(const uint16_t* h, int n) {
    if (n >= kLanes) return load_f16(h);
    uint16_t halves[kLanes] = {};
    copy(halves, h, n);
    return load_f16(halves);
  }
  static INFENG_INLINE void store_f16(uint16_t* h, F f) {
    vst1q_u16(h, vcombine_u16(vreinterpret_u16_f16(vcvt_f16_f32(f.a)), vreinterpret_u16_f16(vcvt_f16_f32(f.b))));
    vst1q_u16(h + 8, vcombine_u16(vreinterpret_u16_f16(vcvt_f16_f32(f.c)), vreinterpret_u16_f16(vcvt_f16_f32(f.d))));
  }
  static INFENG_INLINE F load_bf16(const uint16_t* h) {
    const uint16x8_t low = vld1q_u16(h), high = vld1q_u16(h + 8);
    return {vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(low), 16)), vreinterpretq_f32_u32(vshll_high_n_u16(low, 16)),
            vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(high), 16)),
            vreinterpretq_f32_u32(vshll_high_n_u16(high, 16))};
  }
  static INFENG_INLINE F load_bf16_even(const void* from) {
    const Line l = line((const uint8_t*)from);
    return {upper_half(l.a, true), upper_half(l.b, true), upper_half(l.c, true), upper_half(l.d, true)};
  }
  static INFENG_INLINE F load_bf16_odd(const void* from) {
    const Line l = line((const uint8_t*)from);
    return {upper_half(l.a, false), upper_half(l.b, false), upper_half(l.c, false), upper_half(l.d, false)};
  }
  static INFENG_INLINE F load_i8(const int8_t* b) { return widen_i8(vld1q_s8(b)); }
  static INFENG_INLINE F load_i8(const int8_t* b, int n) {
    if (n >= kLanes) return load_i8(b);
    int8_t bytes[kLanes] = {};
    copy(bytes, b, n);
    return load_i8(bytes);
  }
  static INFENG_INLINE F load_i4(const uint8_t* b) {
    const uint8x8_t v = vld1_u8(b);
    const uint8x16_t nibbles = vcombine_u8(vand_u8(v, vdup_n_u8(15)), vshr_n_u8(v, 4));
    return widen_i8(vsubq_s8(vreinterpretq_s8_u8(nibbles), vdupq_n_s8(8)));
  }
  // Except for the sign, a code is the upper half of a binary16.
  static INFENG_INLINE F load_e4m3(const uint8_t* b) {
    const int8x16_t codes = vreinterpretq_s8_u8(vld1q_u8(b));
    const auto half = [](int16x8_t code) INFENG_INLINE_LAMBDA {
      return vandq_u16(vreinterpretq_u16_s16(vshlq_n_s16(code, 7)), vdupq_n_u16(0xbf80));
    };
    return widen_f16(half(vmovl_s8(vget_low_s8(codes))), half(vmovl_high_s8(codes)));
  }
  static INFENG_INLINE F load_e4m3(const uint8_t* b, int n) {
    if (n >= kLanes) return load_e4m3(b);
    uint8_t codes[kLanes] = {};
    copy(codes, b, n);
    return load_e4m3(codes);
  }
  static INFENG_INLINE void store_i8(int8_t* q, I n) { vst1q_s8(q, bytes(n)); }
  static INFENG_INLINE int32_t sum_i8(const int8_t* b, int n) {
    int32x4_t sum = vdupq_n_s32(0);
    for (int i = 0; i < n; i += 32) {
      sum = vdotq_s32(sum, vld1q_s8(b + i), vdupq_n_s8(1));
      sum = vdotq_s32(sum, vld1q_s8(b + i + 16), vdupq_n_s8(1));
    }
    return vaddvq_s32(sum);
  }
  static INFENG_INLINE void unpack_nibbles(const void* from, uint8_t* low, uint8_t* high) {
    const Line l = line((const uint8_t*)from);
    store_line(low, low_nibbles(l));
    store_line(high, high_nibbles(l));
  }
  static INFENG_INLINE void prefetch(const void* line) { __builtin_prefetch(line, 0, 2); }

  // Shares of V as bytes; add_nibbles multiplies shares of V as nibbles.
  using Share = uint8_t;
  static INFENG_INLINE void store_shares(Share* to, I shares) { vst1q_u8(to, vreinterpretq_u8_s8(bytes(shares))); }
  template <int M, int C>
  static INFENG_INLINE void add_nibbles(I (&acc)[M][C], const uint8_t* lines, int step, const int8_t* b, int stride) {
    int8x16_t x[M];
    INFENG_EACH (m, M) x[m] = vld1q_s8(b + m * stride);
    INFENG_EACH (c, C)
      unrolled<kLanes / 4>([&](auto g) INFENG_INLINE_LAMBDA {
        const uint8_t* from = lines + g.value * step + c * (kLine / 2);
        const uint8x16_t v = vld1q_u8(from), w = vld1q_u8(from + 16), mask = vdupq_n_u8(15);
        const Line columns = {vandq_u8(v, mask), vandq_u8(w, mask), vshrq_n_u8(v, 4), vshrq_n_u8(w, 4)};
        INFENG_EACH (m, M) acc[m][c] = dot_signed<g.value>(acc[m][c], columns, x[m]);
      });
  }

  // Nibbles are also signed bytes. Low and high nibbles of four lines are multiplied by 16 k each.
  template <int L, int M, int P, class Each>
  static INFENG_INLINE void dot_nibbles(I (&acc)[M][P], const uint8_t* const (&w)[P], const int8_t* const (&x)[M],
                                        const int32_t (&sum)[M], const Each& each) {
    constexpr int S = M == 1 ? P : 1;  // panels at a time: two double the independent sums of one row
    INFENG_ROLLED
    for (int turn = 0; turn < P / S; ++turn) {
      I total[M][S];
      INFENG_EACH (m, M)
        INFENG_EACH (s, S) total[m][s] = iset(-8 * sum[m]);
      INFENG_EACH (from, (L + 3) / 4) {
        int8x16_t low[M], high[M];
        INFENG_EACH (m, M) {
          low[m] = inputs<L>(x[m] + 16 * from);
          high[m] = inputs<L>(x[m] + 4 * L + 16 * from);
        }
        unrolled<(L < 4 ? L : 4)>([&](auto i) INFENG_INLINE_LAMBDA {
          const int l = 4 * from + i.value;
          spread<P / S>(turn, L, l, each);
          INFENG_EACH (s, S) {
            const Line v = line(w[turn * S + s] + l * kLine), lows = low_nibbles(v), highs = high_nibbles(v);
            INFENG_EACH (m, M) total[m][s] = dot_signed<i.value>(total[m][s], lows, low[m]);
            INFENG_EACH (m, M) total[m][s] = dot_signed<i.value>(total[m][s], highs, high[m]);
          }
        });
      }
      INFENG_EACH (m, M)
        INFENG_EACH (s, S) acc[m][turn * S + s] = total[m][s];
    }
  }

  // Loads that separate four bytes give the sub-scales of 16 outputs. SubScales hold s of an output as 32 bits, and z *
  // s of the first 32 k of all outputs before those of the last.
  template <int Bits>
  static INFENG_INLINE void sub_scales(const uint8_t* from, int odd, SubScales& out) {
    const uint8x16x4_t v = vld4q_u8(from);
    split_scales<Bits>(odd ? v.val[1] : v.val[0], 0, out);
    split_scales<Bits>(odd ? v.val[3] : v.val[2], 1, out);
  }
  template <int Bits>
  static INFENG_INLINE void sub_scales(const uint8_t* from, SubScales& even, SubScales& odd) {
    const uint8x16x4_t v = vld4q_u8(from);
    split_scales<Bits>(v.val[0], 0, even);
    split_scales<Bits>(v.val[1], 0, odd);
    split_scales<Bits>(v.val[2], 1, even);
    split_scales<Bits>(v.val[3], 1, odd);
  }
  static INFENG_INLINE int32_t minus_halves(const int8_t* x, int32_t sum) {
    const int32_t low = sum_i8(x, kGroup / 2);
    return int32_t((uint32_t(-low) & 0xffffu) | uint32_t(low - sum) << 16);
  }

  // The sums over 32 k are scaled, and with few rows that takes less than scaling their lines.
  template <int Bits, int M, int P, class Each>
  static INFENG_INLINE void dot_packed(I (&acc)[M][P], const uint8_t* const (&w)[P], const SubScales* const (&s)[P],
                                       const int8_t* const (&x)[M], const int32_t* minus, const Each& each) {
    INFENG_EACH (h, 2) {
      forget_loads();
      int8x16_t low[M], high[M];
      I sum[M][P];
      INFENG_EACH (m, M) {
        low[m] = vld1q_s8(x[m] + 32 * h);
        high[m] = vld1q_s8(x[m] + 32 * h + 16);
        INFENG_EACH (p, P) sum[m][p] = iset(0);
      }
      unrolled<4>([&](auto i) INFENG_INLINE_LAMBDA {
        spread_packed<Bits>(8 * h + 2 * i.value, each);
        spread_packed<Bits>(8 * h + 2 * i.value + 1, each);
        INFENG_EACH (p, P) {
          const uint8_t* packed = w[p] + h * Bits * kLine;
          const Line lows = units<Bits>(packed, i.value), highs = units<Bits>(packed, 4 + i.value);
          INFENG_EACH (m, M) sum[m][p] = dot_signed<i.value>(sum[m][p], lows, low[m]);
          INFENG_EACH (m, M) sum[m][p] = dot_signed<i.value>(sum[m][p], highs, high[m]);
        }
      });
      INFENG_EACH (p, P) {
        const I scale = scales_of(*s[p], h);
        INFENG_EACH (m, M)
          acc[m][p] = multiply_add(h == 0 ? zero_points(*s[p], minus[m]) : acc[m][p], sum[m][p], scale);
      }
    }
  }

 protected:
  template <class T>
  static INFENG_INLINE void copy(T* to, const T* from, int n) {
    for (int i = 0; i < n; ++i) to[i] = from[i];
  }
  static INFENG_INLINE I integers(F f) {
    return {vreinterpretq_s32_f32(f.a), vreinterpretq_s32_f32(f.b), vreinterpretq_s32_f32(f.c),
            vreinterpretq_s32_f32(f.d)};
  }
  static INFENG_INLINE float32x4_t exp2i(int32x4_t n) {
    return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(n, vdupq_n_s32(127)), 23));
  }
  static INFENG_INLINE float32x4_t scale_above(float32x4_t x, float32x4_t least, float32x4_t y, float32x4_t bits) {
    const int32x4_t exponent = vshlq_n_s32(vreinterpretq_s32_f32(bits), 23);
    const uint32x4_t scaled = vreinterpretq_u32_s32(vaddq_s32(vreinterpretq_s32_f32(y), exponent));
    return vreinterpretq_f32_u32(vandq_u32(scaled, vcgeq_f32(x, least)));
  }
  template <int H>
  static INFENG_INLINE float32x4_t butterfly_of_four(float32x4_t x) {
    constexpr uint64_t kSign = 0x80000000u, kBoth = kSign << 32 | kSign;
    const uint64x2_t sign =
        vcombine_u64(vcreate_u64(H == 2 ? 0 : kSign << 32), vcreate_u64(H == 2 ? kBoth : kSign << 32));
    const float32x4_t other = H == 2 ? vextq_f32(x, x, 2) : vrev64q_f32(x);
    return vaddq_f32(other, vreinterpretq_f32_u64(veorq_u64(vreinterpretq_u64_f32(x), sign)));
  }
  static INFENG_INLINE F widen_f16(uint16x8_t low, uint16x8_t high) {
    const float16x8_t a = vreinterpretq_f16_u16(low), b = vreinterpretq_f16_u16(high);
    return {vcvt_f32_f16(vget_low_f16(a)), vcvt_high_f32_f16(a), vcvt_f32_f16(vget_low_f16(b)), vcvt_high_f32_f16(b)};
  }
  static INFENG_INLINE float32x4_t upper_half(uint8x16_t v, bool even) {
    const uint32x4_t pairs = vreinterpretq_u32_u8(v);
    return vreinterpretq_f32_u32(even ? vshlq_n_u32(pairs, 16) : vandq_u32(pairs, vdupq_n_u32(0xffff0000u)));
  }
  static INFENG_INLINE F widen_i8(int8x16_t v) {
    const int16x8_t low = vmovl_s8(vget_low_s8(v)), high = vmovl_high_s8(v);
    return to_float(
        {vmovl_s16(vget_low_s16(low)), vmovl_high_s16(low), vmovl_s16(vget_low_s16(high)), vmovl_high_s16(high)});
  }
  // The last bytes of all lanes.
  static INFENG_INLINE int8x16_t bytes(I n) {
    const int16x8_t low = vuzp1q_s16(vreinterpretq_s16_s32(n.a), vreinterpretq_s16_s32(n.b));
    const int16x8_t high = vuzp1q_s16(vreinterpretq_s16_s32(n.c), vreinterpretq_s16_s32(n.d));
    return vuzp1q_s8(vreinterpretq_s8_s16(low), vreinterpretq_s8_s16(high));
  }

  static INFENG_INLINE Line line(const uint8_t* w) {
    return {vld1q_u8(w), vld1q_u8(w + 16), vld1q_u8(w + 32), vld1q_u8(w + 48)};
  }
  static INFENG_INLINE void store_line(uint8_t* to, Line l) {
    vst1q_u8(to, l.a);
    vst1q_u8(to + 16, l.b);
    vst1q_u8(to + 32, l.c);
    vst1q_u8(to + 48, l.d);
  }
  template <class Fn>
  static INFENG_INLINE Line each_quarter(Line l, const Fn& fn) {
    return {fn(l.a), fn(l.b), fn(l.c), fn(l.d)};
  }
  static INFENG_INLINE Line low_nibbles(Line l) {
    return each_quarter(l, [](uint8x16_t v) INFENG_INLINE_LAMBDA { return vandq_u8(v, vdupq_n_u8(15)); });
  }
  static INFENG_INLINE Line high_nibbles(Line l) {
    return each_quarter(l, [](uint8x16_t v) INFENG_INLINE_LAMBDA { return vshrq_n_u8(v, 4); });
  }
  // The k of up to four lines of a panel that has L: all 16, or four in every lane.
  template <int L>
  static INFENG_INLINE int8x16_t inputs(const int8_t* x) {
    static_assert(L == 1 || L % 4 == 0);
    if constexpr (L == 1) return four(x);
    return vld1q_s8(x);
  }
  static INFENG_INLINE int8x16_t four(const int8_t* x) {
    int32_t v;
    __builtin_memcpy(&v, x, 4);
    return vreinterpretq_s8_s32(vdupq_n_s32(v));
  }
  // acc + the products of signed bytes with four k of x.
  template <int K>
  static INFENG_INLINE I dot_signed(I acc, Line w, int8x16_t x) {
    return {
        vdotq_laneq_s32(acc.a, vreinterpretq_s8_u8(w.a), x, K), vdotq_laneq_s32(acc.b, vreinterpretq_s8_u8(w.b), x, K),
        vdotq_laneq_s32(acc.c, vreinterpretq_s8_u8(w.c), x, K), vdotq_laneq_s32(acc.d, vreinterpretq_s8_u8(w.d), x, K)};
  }
  static INFENG_INLINE I multiply_add(I acc, I x, I y) {
    return {vmlaq_s32(acc.a, x.a, y.a), vmlaq_s32(acc.b, x.b, y.b), vmlaq_s32(acc.c, x.c, y.c),
            vmlaq_s32(acc.d, x.d, y.d)};
  }
  // Called for line l of 16: calls each() once for every packed line, evenly over all lines.
  template <int Bits, class Each>
  static INFENG_INLINE void spread_packed(int l, const Each& each) {
    if (l * 2 * Bits % 16 < 2 * Bits) each(l * 2 * Bits / 16);
  }
  // Called for every line in each of `Passes` passes: calls each(l) once for every l, evenly over all passes.
  template <unsigned Passes, class Each>
  static INFENG_INLINE void spread(int pass, int lines, int l, const Each& each) {
    const auto at = unsigned(pass * lines + l);
    if (at % Passes == 0) each(int(at / Passes));
  }

  // Makes GCC read x again for each panel; otherwise it would keep x of all halves and spill sums.
  static INFENG_INLINE void forget_loads() { __asm__ volatile("" : : : "memory"); }

  // Line l of the eight unpacked lines of 32 k: nibbles with their upper bits.
  template <int Bits>
  static INFENG_INLINE Line units(const uint8_t* packed, int l) {
    const Line v = line(packed + l % 4 * kLine), nibbles = l < 4 ? low_nibbles(v) : high_nibbles(v);
    if constexpr (Bits == 4) return nibbles;
    constexpr int kLinesOf = Bits == 5 ? 8 : 4;  // lines that share a line of upper bits
    const Line bits = line(packed + (4 + l / kLinesOf) * kLine);
    const int shift = 4 - (Bits - 4) * (l % kLinesOf);
    const auto moved = [&](uint8x16_t unit, uint8x16_t v) INFENG_INLINE_LAMBDA {
      const uint8x16_t upper = shift >= 0 ? v << shift : v >> -shift;
      return vorrq_u8(unit, vandq_u8(upper, vdupq_n_u8(Bits == 5 ? 0x10 : 0x30)));
    };
    return {moved(nibbles.a, bits.a), moved(nibbles.b, bits.b), moved(nibbles.c, bits.c), moved(nibbles.d, bits.d)};
  }
  // The s and z of half h of 64 k, one byte for each output.
  template <int Bits>
  static INFENG_INLINE void split_scales(uint8x16_t v, int h, SubScales& out) {
    const uint8x16_t s = vaddq_u8(vandq_u8(v, vdupq_n_u8((1 << (8 - Bits)) - 1)), vdupq_n_u8(1)), z = v >> (8 - Bits);
    const uint16x8_t low = vmovl_u8(vget_low_u8(s)), high = vmovl_high_u8(s);
    const auto put = [&](int at, uint32x4_t wide)
                         INFENG_INLINE_LAMBDA { vst1q_s16(out.s[h] + 8 * at, vreinterpretq_s16_u32(wide)); };
    put(0, vmovl_u16(vget_low_u16(low)));
    put(1, vmovl_high_u16(low));
    put(2, vmovl_u16(vget_low_u16(high)));
    put(3, vmovl_high_u16(high));
    vst1q_s16(out.zs + kLanes * h, vreinterpretq_s16_u16(vmull_u8(vget_low_u8(s), vget_low_u8(z))));
    vst1q_s16(out.zs + kLanes * h + 8, vreinterpretq_s16_u16(vmull_high_u8(s, z)));
  }
  static INFENG_INLINE I scales_of(const SubScales& s, int h) {
    const auto at = [&](int i) INFENG_INLINE_LAMBDA { return vreinterpretq_s32_s16(vld1q_s16(s.s[h] + 8 * i)); };
    return {at(0), at(1), at(2), at(3)};
  }
  // z * s times minus the sums of x, of both halves.
  static INFENG_INLINE I zero_points(const SubScales& s, int32_t minus) {
    const int16x4_t sums = vreinterpret_s16_s32(vdup_n_s32(minus));
    const int16x8_t a = vld1q_s16(s.zs), b = vld1q_s16(s.zs + 8);
    const int16x8_t c = vld1q_s16(s.zs + 16), d = vld1q_s16(s.zs + 24);
    return {vmlal_lane_s16(vmull_lane_s16(vget_low_s16(a), sums, 0), vget_low_s16(c), sums, 1),
            vmlal_high_lane_s16(vmull_high_lane_s16(a, sums, 0), c, sums, 1),
            vmlal_lane_s16(vmull_lane_s16(vget_low_s16(b), sums, 0), vget_low_s16(d), sums, 1),
            vmlal_high_lane_s16(vmull_high_lane_s16(b, sums, 0), d, sums, 1)};
  }
  // s (u - z) of 64 k, handed to put(l, line, line l + 1) in pairs of lines; both products fit in a byte.
  template <int Bits, class Put>
  static INFENG_INLINE void unpack_weights(const uint8_t* packed, const SubScales& s, const Put& put) {
    INFENG_EACH (h, 2) {
      const Line scale = four_times(scales_of(s, h)), zero = four_times(widen(s.zs + kLanes * h));
      const auto weights = [&](int l) INFENG_INLINE_LAMBDA {
        const Line u = units<Bits>(packed + h * Bits * kLine, l);
        return Line{vsubq_u8(vmulq_u8(u.a, scale.a), zero.a), vsubq_u8(vmulq_u8(u.b, scale.b), zero.b),
                    vsubq_u8(vmulq_u8(u.c, scale.c), zero.c), vsubq_u8(vmulq_u8(u.d, scale.d), zero.d)};
      };
      INFENG_EACH (pair, 4) put(8 * h + 2 * pair, weights(2 * pair), weights(2 * pair + 1));
    }
  }
  static INFENG_INLINE I widen(const int16_t* n) {
    const int16x8_t low = vld1q_s16(n), high = vld1q_s16(n + 8);
    return {vmovl_s16(vget_low_s16(low)), vmovl_high_s16(low), vmovl_s16(vget_low_s16(high)), vmovl_high_s16(high)};
  }
  // Each lane's byte in all four bytes of the lane.
  static INFENG_INLINE Line four_times(I n) {
    const int32x4_t ones = vdupq_n_s32(0x01010101);
    return {vreinterpretq_u8_s32(vmulq_s32(n.a, ones)), vreinterpretq_u8_s32(vmulq_s32(n.b, ones)),
            vreinterpretq_u8_s32(vmulq_s32(n.c, ones)), vreinterpretq_u8_s32(vmulq_s32(n.d, ones))};
  }
};

// `sdot` adds four s8 * s8 products to an int32, exactly. Weights of 8 bits become signed by turning their upper bit,
// which takes out the zero point too.
struct Dotprod : Base {
  template <int Bits, int M, int P, class Each>
  static INFENG_INLINE void dot_lines(I (&acc)[M][P], const uint8_t* const (&w)[P], int lines,
                                      const int8_t* const (&x)[M], const int32_t (&sum)[M], const Each& each) {
    INFENG_ROLLED
    for (int p = 0; p < P; ++p) {
      I total[M];
      INFENG_EACH (m, M) total[m] = iset(Bits == 4 ? -8 * sum[m] : 0);
      int l = 0;
      for (; l + 4 <= lines; l += 4) {
        int8x16_t inputs[M];
        INFENG_EACH (m, M) inputs[m] = vld1q_s8(x[m] + 4 * l);
        unrolled<4>([&](auto i) INFENG_INLINE_LAMBDA {
          spread<P>(p, lines, l + i.value, each);
          const Line v = weights<Bits>(w[p] + (l + i.value) * kLine);
          INFENG_EACH (m, M) total[m] = dot_signed<i.value>(total[m], v, inputs[m]);
        });
      }
      for (; l < lines; ++l) {
        spread<P>(p, lines, l, each);
        const Line v = weights<Bits>(w[p] + l * kLine);
        INFENG_EACH (m, M) total[m] = dot_signed<0>(total[m], v, four(x[m] + 4 * l));
      }
      INFENG_EACH (m, M) acc[m][p] = total[m];
    }
  }

  // Shares are unsigned, so V becomes unsigned: 128 times the sum of the shares is subtracted.
  template <int M, int C>
  static INFENG_INLINE void add_shares(I (&acc)[M][C], const int8_t* lines, int step, const Share* b, int stride) {
    INFENG_EACH (m, M) {
      const int32x4_t sum = vdupq_n_s32(vaddlvq_u8(vld1q_u8(b + m * stride)) * -128);
      INFENG_EACH (c, C) acc[m][c] = iadd(acc[m][c], {sum, sum, sum, sum});
    }
    INFENG_EACH (c, C)
      unrolled<kLanes / 4>([&](auto g) INFENG_INLINE_LAMBDA {
        const Line v = turned(line((const uint8_t*)lines + g.value * step + c * kLine));
        INFENG_EACH (m, M) acc[m][c] = dot_unsigned<g.value>(acc[m][c], v, vld1q_u8(b + m * stride));
      });
  }

  template <int Bits>
  static INFENG_INLINE void unpack_lines(const uint8_t* packed, const SubScales& s, uint8_t* lines) {
    unpack_weights<Bits>(packed, s, [&](int l, Line a, Line b) INFENG_INLINE_LAMBDA {
      store_line(lines + l * kLine, a);
      store_line(lines + (l + 1) * kLine, b);
    });
  }
  template <int M, int P, class Each>
  static INFENG_INLINE void add_biased(I (&acc)[M][P], const uint8_t* const (&w)[P], const int8_t* const (&x)[M],
                                       const Each& each) {
    INFENG_ROLLED
    for (int p = 0; p < P; ++p) {
      I total[M];
      INFENG_EACH (m, M) total[m] = acc[m][p];
      INFENG_ROLLED
      for (int from = 0; from < 16; from += 4) {
        int8x16_t inputs[M];
        INFENG_EACH (m, M) inputs[m] = vld1q_s8(x[m] + 4 * from);
        unrolled<4>([&](auto i) INFENG_INLINE_LAMBDA {
          spread<P>(p, 16, from + i.value, each);
          const Line v = line(w[p] + (from + i.value) * kLine);
          INFENG_EACH (m, M) total[m] = dot_signed<i.value>(total[m], v, inputs[m]);
        });
      }
      INFENG_EACH (m, M) acc[m][p] = total[m];
    }
  }

 private:
  static INFENG_INLINE Line turned(Line l) {
    return each_quarter(l, [](uint8x16_t v) INFENG_INLINE_LAMBDA { return veorq_u8(v, vdupq_n_u8(128)); });
  }
  template <int Bits>
  static INFENG_INLINE Line weights(const uint8_t* w) {
    static_assert(Bits == 4 || Bits == 8);
    return Bits == 4 ? line(w) : turned(line(w));
  }
  template <int K>
  static INFENG_INLINE I dot_unsigned(I acc, Line v, uint8x16_t x) {
    const auto dot = [&](int32x4_t sum, uint8x16_t quarter) INFENG_INLINE_LAMBDA {
      return vreinterpretq_s32_u32(vdotq_laneq_u32(vreinterpretq_u32_s32(sum), quarter, x, K));
    };
    return {dot(acc.a, v.a), dot(acc.b, v.b), dot(acc.c, v.c), dot(acc.d, v.d)};
  }
};

#ifdef __ARM_FEATURE_MATMUL_INT8
// `usdot` and `sudot` multiply u8 by s8. `smmla` and `usmmla` multiply two outputs by two rows over eight k, twice the
// products of a dot; sums of a pair of rows are then interleaved: output 0 of both rows, output 1 of both rows, ...
struct I8mm : Base {
  template <int Bits, int M, int P, class Each>
  static INFENG_INLINE void dot_lines(I (&acc)[M][P], const uint8_t* const (&w)[P], int lines,
                                      const int8_t* const (&x)[M], const int32_t (&sum)[M], const Each& each) {
    constexpr int kZero = 1 << (Bits - 1);
    INFENG_ROLLED
    for (int p = 0; p < P; ++p) {
      I total[M];
      INFENG_EACH (m, M) total[m] = iset(-kZero * sum[m]);
      int l = 0;
      if constexpr (M == 1) {
        for (; l + 4 <= lines; l += 4) {
          const int8x16_t inputs = vld1q_s8(x[0] + 4 * l);
          unrolled<4>([&](auto i) INFENG_INLINE_LAMBDA {
            spread<P>(p, lines, l + i.value, each);
            total[0] = dot_mixed<i.value>(total[0], line(w[p] + (l + i.value) * kLine), inputs);
          });
        }
      } else if (lines > 1) {
        Pairs<M> sums(total);
        for (; l + 2 <= lines; l += 2) {
          spread<P>(p, lines, l, each);
          spread<P>(p, lines, l + 1, each);
          const Line a = line(w[p] + l * kLine), b = line(w[p] + (l + 1) * kLine);
          int8x16_t inputs[Pairs<M>::kCount];
          sums.inputs(x, 4 * l, inputs);
          add_lines<M>(sums, 0, a.a, b.a, inputs);
          add_lines<M>(sums, 2, a.b, b.b, inputs);
          add_lines<M>(sums, 4, a.c, b.c, inputs);
          add_lines<M>(sums, 6, a.d, b.d, inputs);
        }
        sums.store(total);
      }
      for (; l < lines; ++l) {
        spread<P>(p, lines, l, each);
        const Line v = line(w[p] + l * kLine);
        INFENG_EACH (m, M) total[m] = dot_mixed<0>(total[m], v, four(x[m] + 4 * l));
      }
      INFENG_EACH (m, M) acc[m][p] = total[m];
    }
  }

  template <int M, int C>
  static INFENG_INLINE void add_shares(I (&acc)[M][C], const int8_t* lines, int step, const Share* b, int stride) {
    INFENG_EACH (c, C)
      unrolled<kLanes / 4>([&](auto g) INFENG_INLINE_LAMBDA {
        const Line v = line((const uint8_t*)lines + g.value * step + c * kLine);
        INFENG_EACH (m, M) acc[m][c] = dot_shares<g.value>(acc[m][c], v, vld1q_u8(b + m * stride));
      });
  }

  // Lines are stored in pairs: eight k of output 0, of output 1, ...
  template <int Bits>
  static INFENG_INLINE void unpack_lines(const uint8_t* packed, const SubScales& s, uint8_t* lines) {
    unpack_weights<Bits>(packed, s, [&](int l, Line a, Line b) INFENG_INLINE_LAMBDA {
      store_pair(lines + l * kLine, a.a, b.a);
      store_pair(lines + l * kLine + 32, a.b, b.b);
      store_pair(lines + l * kLine + 64, a.c, b.c);
      store_pair(lines + l * kLine + 96, a.d, b.d);
    });
  }
  template <int M, int P, class Each>
  static INFENG_INLINE void add_biased(I (&acc)[M][P], const uint8_t* const (&w)[P], const int8_t* const (&x)[M],
                                       const Each& each) {
    INFENG_ROLLED
    for (int p = 0; p < P; ++p) {
      I total[M];
      INFENG_EACH (m, M) total[m] = acc[m][p];
      Pairs<M> sums(total);
      INFENG_ROLLED
      for (int l = 0; l < 16; l += 4)
        INFENG_EACH (pair, 2) {
          const int at = l + 2 * pair;
          spread<P>(p, 16, at, each);
          spread<P>(p, 16, at + 1, each);
          int8x16_t inputs[Pairs<M>::kCount];
          sums.inputs(x, 4 * at, inputs);
          INFENG_EACH (i, 8) sums.add_signed(i, vld1q_u8(w[p] + at * kLine + 16 * i), inputs);
        }
      sums.store(total);
      INFENG_EACH (m, M) acc[m][p] = total[m];
    }
  }

 private:
  // The sums of M rows and 16 outputs, pair by pair. The last of an odd number of rows is its own partner.
  template <int M>
  struct Pairs {
    static constexpr int kCount = (M + 1) / 2;
    int32x4_t of[kCount][8];

    static constexpr int partner(int i) { return 2 * i + 1 < M ? 2 * i + 1 : M - 1; }
    INFENG_INLINE explicit Pairs(const I (&rows)[M]) {
      INFENG_EACH (i, kCount) {
        const I &r = rows[2 * i], &s = rows[partner(i)];
        interleave(i, 0, r.a, s.a);
        interleave(i, 2, r.b, s.b);
        interleave(i, 4, r.c, s.c);
        interleave(i, 6, r.d, s.d);
      }
    }
    INFENG_INLINE void store(I (&rows)[M]) const {
      INFENG_EACH (i, kCount) {
        const int32x4_t(&sum)[8] = of[i];
        rows[partner(i)] = {vuzp2q_s32(sum[0], sum[1]), vuzp2q_s32(sum[2], sum[3]), vuzp2q_s32(sum[4], sum[5]),
                            vuzp2q_s32(sum[6], sum[7])};
        rows[2 * i] = {vuzp1q_s32(sum[0], sum[1]), vuzp1q_s32(sum[2], sum[3]), vuzp1q_s32(sum[4], sum[5]),
                       vuzp1q_s32(sum[6], sum[7])};
      }
    }
    // Eight k of both rows of each pair.
    static INFENG_INLINE void inputs(const int8_t* const (&x)[M], int k, int8x16_t (&out)[kCount]) {
      INFENG_EACH (i, kCount) out[i] = vcombine_s8(vld1_s8(x[2 * i] + k), vld1_s8(x[partner(i)] + k));
    }
    // Adds two outputs of a line pair.
    INFENG_INLINE void add_unsigned(int at, uint8x16_t w, const int8x16_t (&x)[kCount]) {
      INFENG_EACH (i, kCount) of[i][at] = vusmmlaq_s32(of[i][at], w, x[i]);
    }
    INFENG_INLINE void add_signed(int at, uint8x16_t w, const int8x16_t (&x)[kCount]) {
      INFENG_EACH (i, kCount) of[i][at] = vmmlaq_s32(of[i][at], vreinterpretq_s8_u8(w), x[i]);
    }

   private:
    INFENG_INLINE void interleave(int i, int at, int32x4_t r, int32x4_t s) {
      of[i][at] = vzip1q_s32(r, s);
      of[i][at + 1] = vzip2q_s32(r, s);
    }
  };
  // Adds four outputs of two lines.
  template <int M>
  static INFENG_INLINE void add_lines(Pairs<M>& sums, int at, uint8x16_t a, uint8x16_t b,
                                      const int8x16_t (&x)[Pairs<M>::kCount]) {
    const uint32x4_t low = vreinterpretq_u32_u8(a), high = vreinterpretq_u32_u8(b);
    sums.add_unsigned(at, vreinterpretq_u8_u32(vzip1q_u32(low, high)), x);
    sums.add_unsigned(at + 1, vreinterpretq_u8_u32(vzip2q_u32(low, high)), x);
  }
  static INFENG_INLINE void store_pair(uint8_t* to, uint8x16_t a, uint8x16_t b) {
    const uint32x4_t low = vreinterpretq_u32_u8(a), high = vreinterpretq_u32_u8(b);
    vst1q_u8(to, vreinterpretq_u8_u32(vzip1q_u32(low, high)));
    vst1q_u8(to + 16, vreinterpretq_u8_u32(vzip2q_u32(low, high)));
  }
  template <int K>
  static INFENG_INLINE I dot_mixed(I acc, Line w, int8x16_t x) {
    return {vusdotq_laneq_s32(acc.a, w.a, x, K), vusdotq_laneq_s32(acc.b, w.b, x, K),
            vusdotq_laneq_s32(acc.c, w.c, x, K), vusdotq_laneq_s32(acc.d, w.d, x, K)};
  }
  template <int K>
  static INFENG_INLINE I dot_shares(I acc, Line v, uint8x16_t shares) {
    return {vsudotq_laneq_s32(acc.a, vreinterpretq_s8_u8(v.a), shares, K),
            vsudotq_laneq_s32(acc.b, vreinterpretq_s8_u8(v.b), shares, K),
            vsudotq_laneq_s32(acc.c, vreinterpretq_s8_u8(v.c), shares, K),
            vsudotq_laneq_s32(acc.d, vreinterpretq_s8_u8(v.d), shares, K)};
  }
};
#endif

// The sub-scales of ops/linear_affine.h.
struct AffineBytes : Base {
  // Byte `at` of every output in a line of sub-scales, widened.
  static INFENG_INLINE F take(const uint8_t* from, int at) {
    const Line l = line(from);
    const auto byte = [&](uint8x16_t v) INFENG_INLINE_LAMBDA {
      const uint32x4_t shifted = vreinterpretq_u32_u8(v) >> (8 * at);
      return vreinterpretq_s32_u32(vandq_u32(shifted, vdupq_n_u32(255)));
    };
    return to_float({byte(l.a), byte(l.b), byte(l.c), byte(l.d)});
  }
};

}  // namespace
}  // namespace infeng::neon
#endif  // INFENG_SIMD_NEON_H
