// The vocabulary of vec.h as plain loops, which define each function and run on any CPU. Ops over it are slow; they
// serve to read, test and sanitize the loops of ops without a vector unit.
// SPDX-License-Identifier: Apache-2.0
#ifndef INFENG_SIMD_SCALAR_H
#define INFENG_SIMD_SCALAR_H

#include <infeng/simd/vec.h>

namespace infeng::scalar {
namespace {

struct Scalar {
  struct F {
    float v[kLanes];
  };
  struct I {
    int32_t v[kLanes];
  };
  static constexpr int kRows = 2;
  static constexpr int kBlockRows = 2;
  static constexpr int kBlockPanels = 2;
  static constexpr int kScaledRows = 2;
  static constexpr int kPackedRows = 3;
  static constexpr int kPackedMost = 6;
  static constexpr int kScaledPanels = 2;
  static constexpr int packed_panels(int rows) { return rows == 1 ? 2 : 1; }
  static constexpr int kColumns = 4;

  template <class R, class Fn>
  static INFENG_INLINE R lanes(const Fn& fn) {
    R r;
    for (int i = 0; i < kLanes; ++i) r.v[i] = fn(i);
    return r;
  }
  static F zero() { return set(0.0f); }
  static F set(float s) {
    return lanes<F>([&](int) { return s; });
  }
  static F load(const float* x) {
    return lanes<F>([&](int i) { return x[i]; });
  }
  static F load(const float* x, int n) {
    return lanes<F>([&](int i) { return i < n ? x[i] : 0.0f; });
  }
  static void store(float* y, F f) { store(y, f, kLanes); }
  static void store(float* y, F f, int n) {
    for (int i = 0; i < kLanes && i < n; ++i) y[i] = f.v[i];
  }
  static F add(F a, F b) {
    return lanes<F>([&](int i) { return a.v[i] + b.v[i]; });
  }
  static F sub(F a, F b) {
    return lanes<F>([&](int i) { return a.v[i] - b.v[i]; });
  }
  static F mul(F a, F b) {
    return lanes<F>([&](int i) { return a.v[i] * b.v[i]; });
  }
  static F div(F a, F b) {
    return lanes<F>([&](int i) { return a.v[i] / b.v[i]; });
  }
  static F fma(F a, F b, F c) {
    return lanes<F>([&](int i) { return __builtin_fmaf(a.v[i], b.v[i], c.v[i]); });
  }
  static F fms(F a, F b, F c) {
    return lanes<F>([&](int i) { return __builtin_fmaf(a.v[i], b.v[i], -c.v[i]); });
  }
  static F min(F a, F b) {
    return lanes<F>([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
  }
  static F max(F a, F b) {
    return lanes<F>([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
  }
  static F abs(F a) {
    return lanes<F>([&](int i) { return __builtin_fabsf(a.v[i]); });
  }
  static F sqrt(F a) {
    return lanes<F>([&](int i) { return __builtin_sqrtf(a.v[i]); });
  }
  static F select_less(F a, F b, F x, F y) {
    return lanes<F>([&](int i) { return a.v[i] < b.v[i] ? x.v[i] : y.v[i]; });
  }
  static F scale_above(F x, F least, F y, F, F n) {
    return lanes<F>([&](int i) { return x.v[i] >= least.v[i] ? __builtin_ldexpf(y.v[i], int(n.v[i])) : 0.0f; });
  }
  static F exp2i(I n) {
    return lanes<F>([&](int i) { return bits(uint32_t(n.v[i] + 127) << 23); });
  }
  static float tree(F f) {
    for (int half = kLanes / 2; half > 0; half /= 2)
      for (int i = 0; i < half; ++i) f.v[i] += f.v[i + half];
    return f.v[0];
  }
  template <int H>
  static F butterfly(F f) {
    return lanes<F>([&](int i) { return i & H ? f.v[i - H] - f.v[i] : f.v[i] + f.v[i + H]; });
  }
  static float max_lanes(F f) {
    float best = f.v[0];
    for (int i = 1; i < kLanes; ++i) best = f.v[i] > best ? f.v[i] : best;
    return best;
  }
  static I load_i32(const float* x) {
    I r;
    __builtin_memcpy(&r, x, sizeof r);
    return r;
  }
  static void store_i32(float* y, I n) { __builtin_memcpy(y, &n, sizeof n); }
  static I iset(int32_t n) {
    return lanes<I>([&](int) { return n; });
  }
  static I iadd(I a, I b) {
    return lanes<I>([&](int i) { return a.v[i] + b.v[i]; });
  }
  static I imin(I a, I b) {
    return lanes<I>([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
  }
  static I imax(I a, I b) {
    return lanes<I>([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
  }
  static I rne(F f) {
    return lanes<I>([&](int i) { return int32_t(__builtin_rintf(f.v[i])); });
  }
  static F to_float(I n) {
    return lanes<F>([&](int i) { return float(n.v[i]); });
  }
  static int32_t isum(I n) {
    int32_t sum = 0;
    for (int i = 0; i < kLanes; ++i) sum += n.v[i];
    return sum;
  }
  static F load_f16(const uint16_t* h) {
    return lanes<F>([&](int i) { return half(h[i]); });
  }
  static F load_f16(const uint16_t* h, int n) {
    return lanes<F>([&](int i) { return i < n ? half(h[i]) : 0.0f; });
  }
  static void store_f16(uint16_t* h, F f) {
    for (int i = 0; i < kLanes; ++i) h[i] = to_half(f.v[i]);
  }
  static F load_bf16(const uint16_t* h) {
    return lanes<F>([&](int i) { return bits(uint32_t(h[i]) << 16); });
  }
  static F load_bf16_even(const void* line) {
    return lanes<F>([&](int i) { return bits(uint32_t(((const uint16_t*)line)[2 * i]) << 16); });
  }
  static F load_bf16_odd(const void* line) {
    return lanes<F>([&](int i) { return bits(uint32_t(((const uint16_t*)line)[2 * i + 1]) << 16); });
  }
  static F load_i8(const int8_t* b) { return load_i8(b, kLanes); }
  static F load_i8(const int8_t* b, int n) {
    return lanes<F>([&](int i) { return i < n ? float(b[i]) : 0.0f; });
  }
  static F load_i4(const uint8_t* b) {
    return lanes<F>([&](int i) { return float((i < 8 ? b[i] & 15 : b[i - 8] >> 4) - 8); });
  }
  static F load_e4m3(const uint8_t* b) { return load_e4m3(b, kLanes); }
  static F load_e4m3(const uint8_t* b, int n) {
    return lanes<F>([&](int i) { return i < n ? half(uint16_t((b[i] & 0x80u) << 8 | (b[i] & 0x7fu) << 7)) : 0.0f; });
  }
  static void store_i8(int8_t* q, I n) {
    for (int i = 0; i < kLanes; ++i) q[i] = int8_t(n.v[i]);
  }
  static int32_t sum_i8(const int8_t* b, int n) {
    int32_t sum = 0;
    for (int i = 0; i < n; ++i) sum += b[i];
    return sum;
  }
  static void unpack_nibbles(const void* line, uint8_t* low, uint8_t* high) {
    for (int i = 0; i < kLine; ++i) {
      const uint8_t byte = ((const uint8_t*)line)[i];
      low[i] = byte & 15;
      high[i] = byte >> 4;
    }
  }
  static void prefetch(const void*) {}

  template <int Bits, int M, int P, class Each>
  static void dot_lines(I (&acc)[M][P], const uint8_t* const (&w)[P], int lines, const int8_t* const (&x)[M],
                        const int32_t (&sum)[M], const Each&) {
    for (int m = 0; m < M; ++m)
      for (int p = 0; p < P; ++p) {
        acc[m][p] = iset(-sum[m] * (1 << (Bits - 1)));
        for (int l = 0; l < lines; ++l)
          for (int b = 0; b < kLine; ++b) acc[m][p].v[b / 4] += x[m][4 * l + b % 4] * w[p][l * kLine + b];
      }
  }
  template <int L, int M, int P, class Each>
  static void dot_nibbles(I (&acc)[M][P], const uint8_t* const (&w)[P], const int8_t* const (&x)[M],
                          const int32_t (&sum)[M], const Each&) {
    for (int m = 0; m < M; ++m)
      for (int p = 0; p < P; ++p) {
        acc[m][p] = iset(-sum[m] * 8);
        for (int l = 0; l < L; ++l)
          for (int b = 0; b < kLine; ++b) {
            const uint8_t byte = w[p][l * kLine + b];
            acc[m][p].v[b / 4] += x[m][4 * l + b % 4] * (byte & 15);
            acc[m][p].v[b / 4] += x[m][4 * (l + L) + b % 4] * (byte >> 4);
          }
      }
  }

  using Share = uint8_t;
  static void store_shares(Share* to, I shares) {
    for (int t = 0; t < kLanes; ++t) to[t] = Share(shares.v[t]);
  }
  template <int M, int C>
  static void add_shares(I (&acc)[M][C], const int8_t* lines, int step, const Share* b, int stride) {
    for (int m = 0; m < M; ++m)
      for (int c = 0; c < C; ++c)
        for (int t = 0; t < kLanes; ++t)
          for (int d = 0; d < kLanes; ++d)
            acc[m][c].v[d] += b[m * stride + t] * lines[t / 4 * step + c * kLine + 4 * d + t % 4];
  }
  template <int M, int C>
  static void add_nibbles(I (&acc)[M][C], const uint8_t* lines, int step, const int8_t* b, int stride) {
    for (int m = 0; m < M; ++m)
      for (int c = 0; c < C; ++c)
        for (int t = 0; t < kLanes; ++t)
          for (int d = 0; d < kLanes; ++d) {
            const uint8_t byte = lines[t / 4 * step + c * kLine / 2 + 4 * (d % 8) + t % 4];
            acc[m][c].v[d] += b[m * stride + t] * (d < 8 ? byte & 15 : byte >> 4);
          }
  }

  template <int Bits>
  static void sub_scales(const uint8_t* line, int odd, SubScales& out) {
    for (int n = 0; n < kLanes; ++n)
      for (int h = 0; h < 2; ++h) {
        const int byte = line[4 * n + 2 * h + odd], s = (byte & ((1 << (8 - Bits)) - 1)) + 1;
        out.s[h][2 * n] = out.s[h][2 * n + 1] = int16_t(s);
        out.zs[2 * n + h] = int16_t(s * (byte >> (8 - Bits)));
      }
  }
  template <int Bits>
  static void unpack_lines(const uint8_t* packed, const SubScales&, uint8_t* lines) {
    for (int l = 0; l < 16; ++l)
      for (int b = 0; b < kLine; ++b) lines[l * kLine + b] = unit<Bits>(packed + l / 8 * Bits * kLine + b, l % 8);
  }
  template <int Bits, int M, int P, class Each>
  static void dot_scaled(I (&acc)[M][P], const uint8_t* const (&w)[P], const SubScales* const (&s)[P],
                         const int8_t* const (&x)[M], const int32_t* minus, const Each&) {
    for (int m = 0; m < M; ++m)
      for (int p = 0; p < P; ++p)
        acc[m][p] = lanes<I>([&](int n) {
          int32_t sum = s[p]->zs[2 * n] * int16_t(minus[m]) + s[p]->zs[2 * n + 1] * (minus[m] >> 16);
          for (int k = 0; k < kGroup; ++k)
            sum += s[p]->s[k / 32][2 * n] * w[p][k / 4 * kLine + 4 * n + k % 4] * x[m][k];
          return sum;
        });
  }
  template <int Bits, int M, int P, class Each>
  static void dot_packed(I (&acc)[M][P], const uint8_t* const (&w)[P], const SubScales* const (&s)[P],
                         const int8_t* const (&x)[M], const int32_t* minus, const Each& each) {
    uint8_t lines[P][kGroup * kLanes];
    const uint8_t* unpacked[P];
    for (int p = 0; p < P; ++p) {
      unpack_lines<Bits>(w[p], *s[p], lines[p]);
      unpacked[p] = lines[p];
    }
    dot_scaled<Bits, M, P>(acc, unpacked, s, x, minus, each);
  }
  static int32_t minus_halves(const int8_t* x, int32_t sum) {
    const int32_t low = sum_i8(x, kGroup / 2), high = sum - low;
    return int32_t((uint32_t(-low) & 0xffffu) | uint32_t(-high) << 16);
  }
  // The unit in line l of eight; `from` is the packed byte of 32 k.
  template <int Bits>
  static uint8_t unit(const uint8_t* from, int l) {
    const int nibble = from[l % 4 * kLine] >> (l < 4 ? 0 : 4) & 15;
    if (Bits == 4) return uint8_t(nibble);
    if (Bits == 5) return uint8_t(nibble | (from[4 * kLine] >> l & 1) << 4);
    return uint8_t(nibble | (from[(4 + l / 4) * kLine] >> 2 * (l % 4) & 3) << 4);
  }

  static float bits(uint32_t u) {
    float f;
    __builtin_memcpy(&f, &u, 4);
    return f;
  }
  // f32 of at most 65504 to binary16, to nearest even.
  static uint16_t to_half(float f) {
    uint32_t u;
    __builtin_memcpy(&u, &f, 4);
    const uint32_t sign = (u >> 16) & 0x8000u, magnitude = u & 0x7fffffffu;
    if (magnitude < 0x38800000u) return uint16_t(sign | uint32_t(__builtin_rintf(bits(magnitude) * 0x1p24f)));
    return uint16_t(sign | (((magnitude + 0xfffu + ((magnitude >> 13) & 1u)) >> 13) - (112u << 10)));
  }
  // binary16 to f32, exact; subnormals are multiples of 2^-24.
  static float half(uint16_t h) {
    const uint32_t sign = uint32_t(h & 0x8000) << 16, exponent = (h >> 10) & 31, fraction = h & 1023;
    if (exponent == 0) return (sign ? -1.0f : 1.0f) * float(fraction) * 0x1p-24f;
    return bits(sign | (exponent == 31 ? 255u << 23 : (exponent + 112) << 23) | fraction << 13);
  }
};

}  // namespace
}  // namespace infeng::scalar
#endif  // INFENG_SIMD_SCALAR_H
