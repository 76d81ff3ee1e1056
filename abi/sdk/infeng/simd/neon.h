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
  // Four outputs: their part of a vector, and the place of their bytes in a line.
  template <int32x4_t I::* Sum, int Index>
  struct Quarter {
    static constexpr auto sum = Sum;
    static constexpr int index = Index;
    static constexpr int offset = 16 * Index;
  };
  static constexpr int kColumns = 1;
  static constexpr int kRows = 4;
  static constexpr int kBlockPanels = 1;
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
  static INFENG_INLINE F load_bf16_even(const void* line) {
    const auto at = [&](int i) INFENG_INLINE_LAMBDA { return vreinterpretq_f32_u32(vshlq_n_u32(pairs(line, i), 16)); };
    return {at(0), at(1), at(2), at(3)};
  }
  static INFENG_INLINE F load_bf16_odd(const void* line) {
    const uint32x4_t upper = vdupq_n_u32(0xffff0000u);
    const auto at = [&](int i) INFENG_INLINE_LAMBDA { return vreinterpretq_f32_u32(vandq_u32(pairs(line, i), upper)); };
    return {at(0), at(1), at(2), at(3)};
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
  static INFENG_INLINE void unpack_nibbles(const void* line, uint8_t* low, uint8_t* high) {
    INFENG_EACH (i, 4) {
      const uint8x16_t v = vld1q_u8((const uint8_t*)line + 16 * i);
      vst1q_u8(low + 16 * i, low_nibbles(v));
      vst1q_u8(high + 16 * i, high_nibbles(v));
    }
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
        quarters([&](auto q) INFENG_INLINE_LAMBDA {
          const uint8x16_t v = vld1q_u8(from + q.offset % 32);
          const int8x16_t columns = vreinterpretq_s8_u8(q.index < 2 ? low_nibbles(v) : high_nibbles(v));
          INFENG_EACH (m, M) acc[m][c].*q.sum = vdotq_laneq_s32(acc[m][c].*q.sum, columns, x[m], g.value);
        });
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
      INFENG_EACH (part, (L + 3) / 4) {
        int8x16_t low[M], high[M];
        INFENG_EACH (m, M) {
          low[m] = inputs<L>(x[m] + 16 * part);
          high[m] = inputs<L>(x[m] + 4 * L + 16 * part);
        }
        unrolled<(L < 4 ? L : 4)>([&](auto i) INFENG_INLINE_LAMBDA {
          const int l = 4 * part + i.value;
          spread<P / S>(turn, L, l, each);
          INFENG_EACH (s, S) {
            const uint8_t* from = w[turn * S + s] + l * kLine;
            quarters([&](auto q) INFENG_INLINE_LAMBDA {
              const uint8x16_t v = vld1q_u8(from + q.offset);
              add_both<i.value>(q, total, s, low_nibbles(v), low, high_nibbles(v), high);
            });
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
          quarters([&](auto q) INFENG_INLINE_LAMBDA {
            const uint8_t* from = packed + q.offset;
            add_both<i.value>(q, sum, p, units<Bits>(from, i.value), low, units<Bits>(from, 4 + i.value), high);
          });
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
  static INFENG_INLINE uint32x4_t pairs(const void* line, int quarter) {
    return vreinterpretq_u32_u8(vld1q_u8((const uint8_t*)line + 16 * quarter));
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

  // Calls fn(Quarter) for each quarter of a vector, so that one register at a time holds weights.
  template <class Fn>
  static INFENG_INLINE void quarters(const Fn& fn) {
    fn(Quarter<&I::a, 0>{});
    fn(Quarter<&I::b, 1>{});
    fn(Quarter<&I::c, 2>{});
    fn(Quarter<&I::d, 3>{});
  }
  static INFENG_INLINE uint8x16_t low_nibbles(uint8x16_t v) { return vandq_u8(v, vdupq_n_u8(15)); }
  static INFENG_INLINE uint8x16_t high_nibbles(uint8x16_t v) { return vshrq_n_u8(v, 4); }
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
  // Adds the products of a quarter's low and high units, which are also signed bytes, with lane K of their inputs.
  template <int K, class Q, int M, int P>
  static INFENG_INLINE void add_both(Q q, I (&sum)[M][P], int p, uint8x16_t a, const int8x16_t (&x)[M], uint8x16_t b,
                                     const int8x16_t (&y)[M]) {
    INFENG_EACH (m, M) sum[m][p].*q.sum = vdotq_laneq_s32(sum[m][p].*q.sum, vreinterpretq_s8_u8(a), x[m], K);
    INFENG_EACH (m, M) sum[m][p].*q.sum = vdotq_laneq_s32(sum[m][p].*q.sum, vreinterpretq_s8_u8(b), y[m], K);
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

  // A quarter of line l of the eight unpacked lines of 32 k: nibbles with their upper bits.
  template <int Bits>
  static INFENG_INLINE uint8x16_t units(const uint8_t* packed, int l) {
    const uint8x16_t v = vld1q_u8(packed + l % 4 * kLine), nibbles = l < 4 ? low_nibbles(v) : high_nibbles(v);
    if constexpr (Bits == 4) return nibbles;
    constexpr int kLinesOf = Bits == 5 ? 8 : 4;  // lines that share a line of upper bits
    const uint8x16_t bits = vld1q_u8(packed + (4 + l / kLinesOf) * kLine);
    const int shift = 4 - (Bits - 4) * (l % kLinesOf);
    const uint8x16_t moved = shift >= 0 ? bits << shift : bits >> -shift;
    return vorrq_u8(nibbles, vandq_u8(moved, vdupq_n_u8(Bits == 5 ? 0x10 : 0x30)));
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
  // Quarters of s (u - z), handed to put(l, quarter, of line l, of line l + 1) for even l; both products fit in a byte.
  template <int Bits, class Put>
  static INFENG_INLINE void unpack_weights(const uint8_t* packed, const SubScales& s, const Put& put) {
    INFENG_EACH (h, 2)
      quarters([&](auto q) INFENG_INLINE_LAMBDA {
        const uint8x16_t scale = four_times(vreinterpretq_s32_s16(vld1q_s16(s.s[h] + 8 * q.index)));
        const uint8x16_t zero = four_times(vmovl_s16(vld1_s16(s.zs + kLanes * h + 4 * q.index)));
        const auto weights = [&](int l) INFENG_INLINE_LAMBDA {
          return vsubq_u8(vmulq_u8(units<Bits>(packed + h * Bits * kLine + q.offset, l), scale), zero);
        };
        INFENG_EACH (pair, 4) put(8 * h + 2 * pair, q, weights(2 * pair), weights(2 * pair + 1));
      });
  }
  // Each lane's byte in all four bytes of the lane.
  static INFENG_INLINE uint8x16_t four_times(int32x4_t n) {
    return vreinterpretq_u8_s32(vmulq_s32(n, vdupq_n_s32(0x01010101)));
  }
};

// `sdot` adds four s8 * s8 products to an int32, exactly. Weights of 8 bits become signed by turning their upper bit,
// which takes out the zero point too.
struct Dotprod : Base {
  static constexpr int kBlockRows = 5;
  static constexpr int kScaledRows = 5;

  template <int Bits, int M, int P, class Each>
  static INFENG_INLINE void dot_lines(I (&acc)[M][P], const uint8_t* const (&w)[P], int lines,
                                      const int8_t* const (&x)[M], const int32_t (&sum)[M], const Each& each) {
    static_assert(Bits == 4 || Bits == 8);
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
          add_line<i.value, Bits == 8>(total, w[p] + (l + i.value) * kLine, inputs);
        });
      }
      for (; l < lines; ++l) {
        spread<P>(p, lines, l, each);
        int8x16_t inputs[M];
        INFENG_EACH (m, M) inputs[m] = four(x[m] + 4 * l);
        add_line<0, Bits == 8>(total, w[p] + l * kLine, inputs);
      }
      INFENG_EACH (m, M) acc[m][p] = total[m];
    }
  }

  // Shares are unsigned, so V becomes unsigned: 128 times the sum of the shares is subtracted.
  template <int M, int C>
  static INFENG_INLINE void add_shares(I (&acc)[M][C], const int8_t* lines, int step, const Share* b, int stride) {
    uint8x16_t shares[M];
    INFENG_EACH (m, M) {
      shares[m] = vld1q_u8(b + m * stride);
      const I sum = iset(vaddlvq_u8(shares[m]) * -128);
      INFENG_EACH (c, C) acc[m][c] = iadd(acc[m][c], sum);
    }
    INFENG_EACH (c, C)
      unrolled<kLanes / 4>([&](auto g) INFENG_INLINE_LAMBDA {
        quarters([&](auto q) INFENG_INLINE_LAMBDA {
          const uint8x16_t v = turned(vld1q_u8((const uint8_t*)lines + g.value * step + c * kLine + q.offset));
          INFENG_EACH (m, M) {
            int32x4_t& sum = acc[m][c].*q.sum;
            sum = vreinterpretq_s32_u32(vdotq_laneq_u32(vreinterpretq_u32_s32(sum), v, shares[m], g.value));
          }
        });
      });
  }

  template <int Bits>
  static INFENG_INLINE void unpack_lines(const uint8_t* packed, const SubScales& s, uint8_t* lines) {
    unpack_weights<Bits>(packed, s, [&](int l, auto q, uint8x16_t a, uint8x16_t b) INFENG_INLINE_LAMBDA {
      vst1q_u8(lines + l * kLine + q.offset, a);
      vst1q_u8(lines + (l + 1) * kLine + q.offset, b);
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
          add_line<i.value, false>(total, w[p] + (from + i.value) * kLine, inputs);
        });
      }
      INFENG_EACH (m, M) acc[m][p] = total[m];
    }
  }

 private:
  static INFENG_INLINE uint8x16_t turned(uint8x16_t v) { return veorq_u8(v, vdupq_n_u8(128)); }
  // Adds the products of a line, whose bytes are turned first or not, with lane K of the inputs.
  template <int K, bool Turn, int M>
  static INFENG_INLINE void add_line(I (&total)[M], const uint8_t* line, const int8x16_t (&x)[M]) {
    quarters([&](auto q) INFENG_INLINE_LAMBDA {
      const uint8x16_t bytes = vld1q_u8(line + q.offset);
      const int8x16_t v = vreinterpretq_s8_u8(Turn ? turned(bytes) : bytes);
      INFENG_EACH (m, M) total[m].*q.sum = vdotq_laneq_s32(total[m].*q.sum, v, x[m], K);
    });
  }
};

#ifdef __ARM_FEATURE_MATMUL_INT8
// `usdot` and `sudot` multiply u8 by s8. `smmla` and `usmmla` multiply two outputs by two rows over eight k, twice the
// products of a dot; sums of a pair of rows are then interleaved: output 0 of both rows, output 1 of both rows, ...
struct I8mm : Base {
  static constexpr int kBlockRows = 6;
  static constexpr int kScaledRows = 6;

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
          const int8x16_t inputs[1] = {vld1q_s8(x[0] + 4 * l)};
          unrolled<4>([&](auto i) INFENG_INLINE_LAMBDA {
            spread<P>(p, lines, l + i.value, each);
            add_line<i.value>(total, w[p] + (l + i.value) * kLine, inputs);
          });
        }
      } else if (lines > 1) {
        Pairs<M> sums(total);
        for (; l + 2 <= lines; l += 2) {
          spread<P>(p, lines, l, each);
          spread<P>(p, lines, l + 1, each);
          int8x16_t inputs[Pairs<M>::kCount];
          sums.inputs(x, 4 * l, inputs);
          quarters([&](auto q) INFENG_INLINE_LAMBDA {
            const uint8_t* from = w[p] + l * kLine + q.offset;
            const auto both = zipped(vld1q_u8(from), vld1q_u8(from + kLine));
            sums.add_unsigned(2 * q.index, both.val[0], inputs);
            sums.add_unsigned(2 * q.index + 1, both.val[1], inputs);
          });
        }
        sums.store(total);
      }
      for (; l < lines; ++l) {
        spread<P>(p, lines, l, each);
        int8x16_t inputs[M];
        INFENG_EACH (m, M) inputs[m] = four(x[m] + 4 * l);
        add_line<0>(total, w[p] + l * kLine, inputs);
      }
      INFENG_EACH (m, M) acc[m][p] = total[m];
    }
  }

  template <int M, int C>
  static INFENG_INLINE void add_shares(I (&acc)[M][C], const int8_t* lines, int step, const Share* b, int stride) {
    uint8x16_t shares[M];
    INFENG_EACH (m, M) shares[m] = vld1q_u8(b + m * stride);
    INFENG_EACH (c, C)
      unrolled<kLanes / 4>([&](auto g) INFENG_INLINE_LAMBDA {
        quarters([&](auto q) INFENG_INLINE_LAMBDA {
          const int8x16_t v = vld1q_s8(lines + g.value * step + c * kLine + q.offset);
          INFENG_EACH (m, M) acc[m][c].*q.sum = vsudotq_laneq_s32(acc[m][c].*q.sum, v, shares[m], g.value);
        });
      });
  }

  // Lines are stored in pairs: eight k of output 0, of output 1, ...
  template <int Bits>
  static INFENG_INLINE void unpack_lines(const uint8_t* packed, const SubScales& s, uint8_t* lines) {
    unpack_weights<Bits>(packed, s, [&](int l, auto q, uint8x16_t a, uint8x16_t b) INFENG_INLINE_LAMBDA {
      const auto both = zipped(a, b);
      vst1q_u8(lines + l * kLine + 2 * q.offset, both.val[0]);
      vst1q_u8(lines + l * kLine + 2 * q.offset + 16, both.val[1]);
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
  // Eight k of each of four outputs, from quarters of two lines.
  static INFENG_INLINE uint8x16x2_t zipped(uint8x16_t a, uint8x16_t b) {
    const uint32x4_t low = vreinterpretq_u32_u8(a), high = vreinterpretq_u32_u8(b);
    return {{vreinterpretq_u8_u32(vzip1q_u32(low, high)), vreinterpretq_u8_u32(vzip2q_u32(low, high))}};
  }
  // Adds the products of a line with lane K of the inputs.
  template <int K, int M>
  static INFENG_INLINE void add_line(I (&total)[M], const uint8_t* line, const int8x16_t (&x)[M]) {
    quarters([&](auto q) INFENG_INLINE_LAMBDA {
      const uint8x16_t v = vld1q_u8(line + q.offset);
      INFENG_EACH (m, M) total[m].*q.sum = vusdotq_laneq_s32(total[m].*q.sum, v, x[m], K);
    });
  }
};
#endif

// The sub-scales of ops/linear_affine.h.
struct AffineBytes : Base {
  // Byte `at` of every output in a line of sub-scales, widened.
  static INFENG_INLINE F take(const uint8_t* from, int at) {
    const auto bytes = [&](int i) INFENG_INLINE_LAMBDA {
      return vreinterpretq_s32_u32(vandq_u32(pairs(from, i) >> (8 * at), vdupq_n_u32(255)));
    };
    return to_float({bytes(0), bytes(1), bytes(2), bytes(3)});
  }
};

}  // namespace
}  // namespace infeng::neon
#endif  // INFENG_SIMD_NEON_H
