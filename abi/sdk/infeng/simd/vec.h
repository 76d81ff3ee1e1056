// The vector vocabulary of all ops. A backend implements it for an instruction set: it is a struct of static functions
// that satisfies `Vector` below. An op is a template over a backend.
//
// A vector always has 16 virtual lanes of 32 bits: one zmm, two ymm or an array. Lanes are outputs (or tokens, or
// columns of one row), so that no op needs a horizontal sum in its inner loop and the order of additions is the same
// everywhere.
//
// Everything under simd/ and ops/ is in unnamed namespaces: a library compiles an op several times with different
// flags, and the linker would merge templates with external linkage and might keep the copy that the CPU cannot run.
// For the same reason this code uses no template of the standard library.
// SPDX-License-Identifier: Apache-2.0
#ifndef INFENG_SIMD_VEC_H
#define INFENG_SIMD_VEC_H

#include <stdint.h>

#define INFENG_INLINE inline __attribute__((always_inline))
#define INFENG_INLINE_LAMBDA __attribute__((always_inline))
#define INFENG_NOINLINE __attribute__((noinline))
// A loop over registers, which is always unrolled completely.
#define INFENG_EACH(i, count) _Pragma("GCC unroll 32") for (int i = 0; i < (count); ++i)
// Before a short loop with a large body: two copies of the body would not fit in the cache of decoded instructions.
#define INFENG_ROLLED _Pragma("GCC unroll 1")
// Before a loop over the lines of a group: GCC spills the accumulators of a loop that is not unrolled.
#define INFENG_UNROLL_LINES _Pragma("GCC unroll 16")

namespace infeng {
namespace {

constexpr int kLanes = 16;
constexpr int kLine = 64;          // bytes of a cache line: 16 outputs x 4 k of int8, or 16 f32
constexpr int kGroup = 64;         // k of one activation group
constexpr int kWidestGroup = 256;  // k that share a scale

// An `each` for dots that does nothing.
struct Nothing {
  INFENG_INLINE void operator()(int) const {}
};

// clang-format off
template <class V>
concept Vector = requires(typename V::F f, typename V::I i, const float* x, float* y, const int8_t* b, int8_t* q,
                          const uint16_t* h, const void* line, float s, int32_t n, typename V::I (&acc)[1][1],
                          const uint8_t* const (&w)[1], const int8_t* const (&xq)[1], const int32_t (&sum)[1], Nothing each) {
  { V::zero() };          // F: +0 in every lane
  { V::set(s) };          // F: s in every lane
  { V::load(x) };         // F: 16 floats, any alignment
  { V::load(x, n) };      // F: min(n, 16) floats, +0 in the other lanes; n <= 0 reads nothing
  { V::store(y, f) };     // 16 floats
  { V::store(y, f, n) };  // the first min(n, 16) floats
  { V::add(f, f) }; { V::sub(f, f) }; { V::mul(f, f) }; { V::div(f, f) };  // IEEE, one rounding each
  { V::fma(f, f, f) };    // a * b + c, one rounding
  { V::fms(f, f, f) };    // a * b - c, one rounding
  { V::min(f, f) }; { V::max(f, f) }; { V::abs(f) }; { V::sqrt(f) };
  { V::select_less(f, f, f, f) };  // F: a < b ? x : y
  { V::exp2i(i) };        // F: 2^n for n in [-127, 127], made from exponent bits (n = -127 gives +0)
  { V::scale_above(f, f, f, f, f) };  // F: of x, least, y, bits and n, x >= least ? y * 2^n : +0. A result that stays is
                                      // a normal number; n is an integer, also in the last 9 bits of `bits`
  { V::tree(f) };         // float: l[i] += l[i + 8], then 4, 2, 1
  { V::template butterfly<8>(f) };  // F: of lanes i, i + H, for H 1, 2, 4 or 8 and i & H == 0, the sum and the difference
  { V::max_lanes(f) };    // float
  { V::load_i32(x) }; { V::store_i32(y, i) };  // I: the bits of 16 floats, aligned to a line
  { V::iset(n) }; { V::iadd(i, i) }; { V::imin(i, i) }; { V::imax(i, i) };
  { V::rne(f) };          // I: nearest integer, ties to even
  { V::to_float(i) };     // F
  { V::isum(i) };         // int32_t: sum of the lanes
  { V::load_f16(h) };     // F: 16 halves
  { V::load_f16(h, n) };  // F: min(n, 16) halves, +0 in the other lanes
  { V::store_f16((uint16_t*)y, f) };  // 16 halves, to nearest even; |f| <= 65504
  { V::load_bf16(h) };    // F: 16 bf16
  { V::load_bf16_even(line) }; { V::load_bf16_odd(line) };  // F: element 2i, 2i + 1 of 32 bf16
  { V::load_i8(b) };      // F: 16 int8, widened
  { V::load_i8(b, n) };   // the same with min(n, 16) lanes
  { V::load_i4((const uint8_t*)b) };  // F: nibbles - 8 of 8 bytes, the low ones in lanes 0-7, the high ones in 8-15
  { V::load_e4m3((const uint8_t*)b) };  // F: 16 e4m3 numbers over 256, exact
  { V::load_e4m3((const uint8_t*)b, n) };  // the same with min(n, 16) lanes
  { V::store_i8(q, i) };  // 16 lanes in [-128, 127] as int8
  { V::sum_i8(b, n) };    // int32_t: sum of n int8, n a multiple of 32
  { V::unpack_nibbles(line, (uint8_t*)q, (uint8_t*)q) };  // low and high nibbles of 64 bytes, each as 64 u8
  { V::prefetch(line) };  // a hint: this line, into the L2 cache
  { V::kRows };           // most rows whose dots over nibbles of two panels stay in registers
  { V::kBlockRows };      // the same for u8 lines of kBlockPanels panels
  { V::kBlockPanels };    // most panels of one dot_lines that share the loads of x: 1, 2 or 4
  { V::kColumns };        // vectors of f32 columns that stay in registers for each of six rows
  // group_dot, the integer primitive (each backend documents how it keeps it exact). Weights are unsigned bytes with a
  // zero point, x is signed; `sum[m]` is the sum of x[m] over the same k, by which the zero point is taken out: with a
  // sum of 0 nibbles, and lines of 4 bits, have none. Bytes of 8 bits may be used without it.
  //   dot_lines<Bits, M, P>(acc, w, lines, x, sum, each):  acc[m][p] = sum over 4 * lines k of x[m][k] * (w[p][k] - 2^(Bits-1))
  //   dot_nibbles<L, M, P>(acc, w, x, sum, each):          the same over L lines of nibbles, 8 * L k, zero point 8
  // each(l) is called once for every line, evenly over the dot, to prefetch memory evenly; a backend may ignore it.
  { V::template dot_lines<8, 1, 1>(acc, w, n, xq, sum, each) };
  { V::template dot_nibbles<8, 1, 1>(acc, w, xq, sum, each) };
  // Shares of tokens, integers in [0, 255], in memory as V::Share; a row has one for each of its tokens.
  //   store_shares(to, i):                            of 16 tokens, in the order in which the backend reads them
  //   add_shares<M, C>(acc, lines, step, b, stride):  acc[m][c] += sum over 16 tokens t of b[m * stride + t] * v[t][c], where
  //     a line of int8 is 16 columns of 4 tokens, C lines are consecutive, and `step` bytes lie between two groups of tokens
  // For V as nibbles, shares are int8 in [-127, 127], token by token:
  //   add_nibbles<M, C>(acc, lines, step, b, stride): the same of v[t][c] + 8, where 32 bytes are 16 columns of 4 tokens; the
  //     high nibbles are columns 8 to 15
  { V::store_shares((typename V::Share*)q, i) };
  { V::template add_shares<1, 1>(acc, b, n, (const typename V::Share*)b, n) };
  { V::template add_nibbles<1, 1>(acc, (const uint8_t*)b, n, b, n) };
};
// clang-format on

// The sub-scales of 64 k of 16 outputs, laid out for products of 16-bit pairs: pair n belongs to output n. A backend
// without such products may use the memory in another way, because nothing else reads it.
struct alignas(64) SubScales {
  int16_t s[2][2 * kLanes];  // of the first and the last 32 k: s twice
  int16_t zs[2 * kLanes];    // z * s of the first and the last 32 k
};

// clang-format off
// The vocabulary for formats with integer sub-scales (ops/weights.h, P32): u has `Bits` bits, byte 4 n + h of a line of
// sub-scales belongs to output n, and minus[m] holds two int16 for the 64 k of row m: minus the sum of the first half
// of x in the low one, of the second half in the high one. Few rows use packed lines, many rows unpacked lines of one
// of the two kinds below.
//   sub_scales<Bits>(line, odd, s):                   reads bytes h = 0, 2, or those behind them
//   sub_scales<Bits>(line, even, odd):                optional: both at once
//   dot_packed<Bits, M, P>(acc, w, s, x, minus, each): acc[m][p] = sum over 64 k of x[m][k] * s (u[p][k] - z)
//   unpack_lines<Bits>(packed, s, lines):              16 unpacked lines
template <class V>
concept SubScaled = Vector<V> && requires(typename V::I (&acc)[1][1], const uint8_t* const (&w)[1], uint8_t* lines,
                                          SubScales& s, const SubScales* const (&scales)[1], const int8_t* const (&x)[1],
                                          const int32_t* minus, Nothing each) {
  { V::template sub_scales<4>(lines, 0, s) };
  { V::template dot_packed<4, 1, 1>(acc, w, scales, x, minus, each) };
  { V::template unpack_lines<4>(lines, s, lines) };
  { V::kPackedRows };    // most rows of one dot_packed whose sums stay in registers
  { V::kScaledRows };    // the same over unpacked lines
  { V::kPackedMost };    // most rows for which several passes over packed lines are faster than unpacking them
  { V::packed_panels(1) };  // most panels of one dot_packed with this many rows: 1 or 2
  { V::minus_halves(x[0], *minus) };  // computes `minus` from 64 x and their sum
};

// Unpacked lines of u, which are scaled during multiplication.
//   dot_scaled<Bits, M, P>(acc, w, s, x, minus, each): as dot_packed
template <class V>
concept ScaledLines = SubScaled<V> && requires(typename V::I (&acc)[1][1], const uint8_t* const (&w)[1],
                                               const SubScales* const (&scales)[1], const int8_t* const (&x)[1],
                                               const int32_t* minus, Nothing each) {
  { V::template dot_scaled<4, 1, 1>(acc, w, scales, x, minus, each) };
  { V::kScaledPanels };  // most panels of one dot_scaled: 1, 2 or 4
};

// Unpacked lines of s (u - z) + kBias, for backends that add products of bytes directly: one zero point serves all, or
// none where bytes may be signed. Their order is the backend's own.
//   add_biased<M, P>(acc, w, x, each): acc[m][p] += sum over 64 k of x[m][k] * w[p][k], of four panels at most
template <class V>
concept BiasedLines = SubScaled<V> && requires(typename V::I (&acc)[1][1], const uint8_t* const (&w)[1],
                                               const int8_t* const (&x)[1], Nothing each) {
  { V::template add_biased<1, 1>(acc, w, x, each) };
  { V::kBias };
};
// clang-format on

// A number as a type, so that a run-time count can choose a template.
template <int N>
struct Constant {
  static constexpr int value = N;
};

// Calls fn(Constant<n>) for n in [Least, Max].
template <int Max, int Least = 1, class Fn>
INFENG_INLINE void dispatch(int n, const Fn& fn) {
  if constexpr (Max > Least) {
    if (n < Max) return dispatch<Max - 1, Least>(n, fn);
  }
  fn(Constant<Max>{});
}

// Calls fn(Constant<n>) for n in [0, Count): a loop whose index chooses registers.
template <int Count, class Fn>
INFENG_INLINE void unrolled(const Fn& fn) {
  if constexpr (Count > 0) {
    unrolled<Count - 1>(fn);
    fn(Constant<Count - 1>{});
  }
}

// Cuts [0, n) into the fewest blocks of at most Max, whose sizes differ by at most one, and calls
// fn(begin, Constant<size>). The caller ensures that no block is smaller than `Least`.
template <int Max, int Least = 1, class Fn>
INFENG_INLINE void balanced_blocks(int n, const Fn& fn) {
  int blocks = (n + Max - 1) / Max;
  for (int begin = 0; blocks > 0; --blocks) {
    const int size = (n - begin + blocks - 1) / blocks;
    dispatch<Max, Least>(size, [&](auto m) INFENG_INLINE_LAMBDA { fn(begin, m); });
    begin += size;
  }
}

// The smallest block of balanced_blocks<most> for any n >= from.
constexpr int smallest_block(int most, int from) {
  int least = most;
  for (int n = from; n < from + most * most; ++n) {
    const int size = n / ((n + most - 1) / most);
    if (size < least) least = size;
  }
  return least;
}

// Calls fn(first panel, Constant<count>) for groups of Most, then of 2 and 1.
template <int Most, class Fn>
INFENG_INLINE void for_panels(int64_t panels, const Fn& fn) {
  int64_t p = 0;
  for (; p + Most <= panels; p += Most) fn(p, Constant<Most>{});
  if (Most > 2 && p + 2 <= panels) {
    fn(p, Constant<2>{});
    p += 2;
  }
  if (p < panels) fn(p, Constant<1>{});
}

}  // namespace
}  // namespace infeng
#endif  // INFENG_SIMD_VEC_H
