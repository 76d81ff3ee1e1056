// The parts of attention that depend on the cache format: preparing a query, the scores of whole blocks of 16 tokens,
// the factors of V, and reading V; docs/numerics.md has the formulas.
// SPDX-License-Identifier: Apache-2.0
#ifndef INFENG_OPS_ATTENTION_CACHE_H
#define INFENG_OPS_ATTENTION_CACHE_H

#include <infeng/ops/kv.h>
#include <infeng/ops/quantize.h>

namespace infeng {
namespace {

constexpr int kSplit = 256;                    // positions
constexpr int kVirtualRows = 48;               // the most (row, query head) pairs of a block
constexpr int kWideFloats = 4096;              // values of V converted at a time: a third of the L1 cache
constexpr int kScoreStride = kSplit + kLanes;  // floats; not a power of two, so that rows use all sets of the cache

// Positions [begin, end), relative to a split's start.
struct Range {
  int begin;
  int end;
};

// Bounds of numbers before, within and behind a range.
struct alignas(64) Edge {
  float at[3 * kLanes];
};
constexpr Edge edge_of(float outside) {
  Edge edge{};
  for (int i = 0; i < 3 * kLanes; ++i) edge.at[i] = i / kLanes == 1 ? __builtin_inff() : outside;
  return edge;
}

// Replaces numbers of the first and the last block that lie outside of `seen` by those of the edge, if they are not
// less; NaN is replaced too. Stores are whole vectors, because a load that overlaps two stores waits for both.
template <Vector V>
INFENG_INLINE void hide_unseen(float* s, Range blocks, Range seen, const Edge& edge) {
  const auto hide = [&](int t, const float* bound)
                        INFENG_INLINE_LAMBDA { V::store(s + t, V::min(V::load(s + t), V::load(bound))); };
  hide(blocks.begin, edge.at + kLanes - (seen.begin - blocks.begin));
  hide(blocks.end - kLanes, edge.at + kLanes + (blocks.end - seen.end));
}

// One worker's scratch: the queries of a block's virtual rows, and their scores in one split.
struct alignas(64) SplitScratch {
  float s[kVirtualRows][kScoreStride];  // scores, then factors of V
  float wide[kLanes * kMaxHeadDim];     // V of some blocks as f32, or shares of tokens (ops/attention_shares.h)
  float largest[kVirtualRows][kLanes];  // of the scores in each lane
  float v_scale[kSplit];
  int8_t qq[kVirtualRows * kMaxHeadDim];  // (virtual rows, head_dim rounded up to 16)
  float qs[kVirtualRows];
  float unit[kVirtualRows];     // what a share of 1 is worth
  int32_t start[kVirtualRows];  // initial values of sums of V as nibbles
  int32_t qsum[kVirtualRows];   // sums of qq, or initial values of dots of words
  const float* q[kVirtualRows];
  Range seen[kVirtualRows];
  float* record[kVirtualRows];                            // of the split
  alignas(64) int16_t words[kVirtualRows * kMaxHeadDim];  // qq in the order of dots of words
  alignas(64) float rotated[kVirtualRows * kMaxHeadDim];  // rotated q, in the rows of qq
};

// Scores of the float caches: a = fma(q[d], K[t][d], a), d ascending, then a * factor. load(p, d) returns element d of
// 16 tokens, factor(p) their factor.
template <Vector V, int M, int P, class Load, class Factor, class Each, class Take>
INFENG_INLINE void float_scores(const Load& load, int dim, const float* const* q, const Factor& factor,
                                const Each& each, const Take& take) {
  typename V::F a[M][P];
  INFENG_EACH (m, M)
    INFENG_EACH (p, P) a[m][p] = V::zero();
  for (int d = 0; d < dim; ++d) {
    typename V::F line[P];
    INFENG_EACH (p, P) {
      each(p, d);
      line[p] = load(p, d);
    }
    INFENG_EACH (m, M) {
      const auto x = V::set(q[m][d]);
      INFENG_EACH (p, P) a[m][p] = V::fma(x, line[p], a[m][p]);
    }
  }
  INFENG_EACH (p, P) {
    const auto f = factor(p);
    INFENG_EACH (m, M) take(m, p, V::mul(a[m][p], f));
  }
}

template <Vector V>
struct AttentionF32 {
  using Keys = AttentionF32;
  using Values = AttentionF32;
  static constexpr uint32_t kFormat = INFENG_KV_F32;
  static constexpr int kScoreRows = 6;              // most rows of one call of `scores`
  static constexpr int kScoreBlocks = V::kColumns;  // most blocks of 16 tokens of one call
  static constexpr int kEach = 1;                   // columns of K per call of `each`
  static constexpr int kBytes = 64;                 // bytes of one column of a slab's V
  static constexpr bool kScaled = false;            // K and V have a scale per token
  static constexpr bool kConverted = false;         // V is not f32
  static constexpr bool kRotated = false;           // K and V are rotated, and so is the unfinished result
  static constexpr int kPerValue = 1;               // columns of V in a Value
  using Value = float;

  static INFENG_INLINE void prepare(const float* q, int, SplitScratch& scratch, int v) { scratch.q[v] = q; }

  // Calls take(m, p, s) with the scores of virtual rows v + m, m < M, for the 16 tokens of slab p, p < P; calls each(p,
  // l) for every line of a slab's K.
  template <int M, int P, class Each, class Take>
  static INFENG_INLINE void scores(const Slab* slabs, int dim, const SplitScratch& scratch, int v, float scale,
                                   const Each& each, const Take& take) {
    const float* k[P];
    INFENG_EACH (p, P) k[p] = slabs[p].k<float>();
    float_scores<V, M, P>([&](int p, int d) INFENG_INLINE_LAMBDA { return V::load(k[p] + d * kLanes); }, dim,
                          scratch.q + v, [&](int) INFENG_INLINE_LAMBDA { return V::set(scale); }, each, take);
  }

  static INFENG_INLINE typename V::F value(const float* v) { return V::load(v); }
  static INFENG_INLINE typename V::F value(const float* v, int n) { return V::load(v, n); }
};

// A float format whose values are widened when they are read.
template <Vector V>
struct AttentionF16 {
  using Keys = AttentionF16;
  using Values = AttentionF16;
  static constexpr uint32_t kFormat = INFENG_KV_F16;
  static constexpr int kScoreRows = 6;
  static constexpr int kScoreBlocks = V::kColumns;
  static constexpr int kEach = 1;
  static constexpr int kBytes = 32;
  static constexpr bool kScaled = false;
  static constexpr bool kConverted = true;
  static constexpr bool kRotated = false;
  static constexpr int kPerValue = 1;
  using Value = uint16_t;

  static INFENG_INLINE void prepare(const float* q, int, SplitScratch& scratch, int v) { scratch.q[v] = q; }

  template <int M, int P, class Each, class Take>
  static INFENG_INLINE void scores(const Slab* slabs, int dim, const SplitScratch& scratch, int v, float scale,
                                   const Each& each, const Take& take) {
    const uint16_t* k[P];
    INFENG_EACH (p, P) k[p] = slabs[p].k<uint16_t>();
    float_scores<V, M, P>([&](int p, int d) INFENG_INLINE_LAMBDA { return V::load_f16(k[p] + d * kLanes); }, dim,
                          scratch.q + v, [&](int) INFENG_INLINE_LAMBDA { return V::set(scale); }, each, take);
  }

  static INFENG_INLINE typename V::F value(const uint16_t* v) { return V::load_f16(v); }
  static INFENG_INLINE typename V::F value(const uint16_t* v, int n) { return V::load_f16(v, n); }
};

// The formats with scales combine Keys, which prepare and score queries, with Values, which read V.

// Keys of 8 or 4 bits: 64 columns are 16 or 8 lines. Queries become int8 with one scale for each row and head.
template <Vector V, int Bits>
struct IntKeys {
  static constexpr bool kScaled = true;
  static constexpr bool kWords = Bits == 8 && requires { V::kWordRows; };  // V has dots of words
  static constexpr int kScoreRows = [] {
    if constexpr (kWords) return V::kWordRows;
    return Bits == 8 ? V::kBlockRows : V::kRows;
  }();
  static constexpr int kScoreBlocks = Bits == 8 ? 4 : 2;
  static constexpr int kEach = 32 / Bits;  // columns of a line, for which each() is called once

  static INFENG_INLINE void prepare(const float* q, int dim, SplitScratch& scratch, int v) {
    const int width = int(round_up(dim, kLanes));
    const Quantized r = quantize<V>(q, dim, scratch.qq + v * width, width);
    scratch.qs[v] = r.scale;
    scratch.qsum[v] = r.sum;
    if constexpr (kWords) {
      scratch.qsum[v] = -128 * r.sum;  // the contribution of K's zero point
      V::words_of(scratch.qq + v * width, width, scratch.words + v * width);
    }
  }

  template <int M, int P, class Each, class Take>
  static INFENG_INLINE void scores(const Slab* slabs, int dim, const SplitScratch& scratch, int v, float scale,
                                   const Each& each, const Take& take) {
    const int width = int(round_up(dim, kLanes)), lines = dim / kEach;
    const auto finish = [&](int m, int p, typename V::I dot, typename V::F ks) INFENG_INLINE_LAMBDA {
      take(m, p, V::mul(V::to_float(dot), V::mul(V::mul(V::set(scratch.qs[v + m]), ks), V::set(scale))));
    };
    if constexpr (kWords) {
      INFENG_ROLLED
      for (int p = 0; p < P; ++p) {
        typename V::I acc[M];
        V::template dot_words<M>(acc, slabs[p].k<uint8_t>(), lines, scratch.words + v * width, width, scratch.qsum + v,
                                 [&](int l) INFENG_INLINE_LAMBDA { each(p, l); });
        const auto ks = V::load(slabs[p].k_scale());
        INFENG_EACH (m, M) finish(m, p, acc[m], ks);
      }
      return;
    }
    constexpr int S = V::kBlockPanels < P ? V::kBlockPanels : P;  // slabs of one dot
    const int8_t* x[M];
    INFENG_EACH (m, M) x[m] = scratch.qq + (v + m) * width;
    INFENG_ROLLED
    for (int p = 0; p < P; p += S) {
      const uint8_t* k[S];
      int32_t sum[M];
      typename V::I acc[M][S];
      const auto each_slab = [&](int l) INFENG_INLINE_LAMBDA {
        INFENG_EACH (i, S) each(p + i, l);
      };
      INFENG_EACH (i, S) k[i] = slabs[p + i].k<uint8_t>();
      INFENG_EACH (m, M) sum[m] = scratch.qsum[v + m];
      for (int l = next_lines(acc, k, x, sum, 0, lines, each_slab); l < lines;) {
        typename V::I more[M][S];
        INFENG_EACH (m, M) sum[m] = 0;
        l += next_lines(more, k, x, sum, l, lines, each_slab);
        INFENG_EACH (m, M)
          INFENG_EACH (i, S) acc[m][i] = V::iadd(acc[m][i], more[m][i]);
      }
      INFENG_EACH (i, S) {
        const auto ks = V::load(slabs[p + i].k_scale());
        INFENG_EACH (m, M) finish(m, p + i, acc[m][i], ks);
      }
    }
  }

 private:
  static constexpr int kGroupLines = kGroup / kEach;

  // The dot over the lines of a whole or partial group; returns their number. The numbers are constants, because a loop
  // of unknown length keeps its sums in memory.
  template <int M, int P, class Each>
  static INFENG_INLINE int next_lines(typename V::I (&acc)[M][P], const uint8_t* const (&k)[P],
                                      const int8_t* const (&x)[M], const int32_t (&sum)[M], int l, int lines,
                                      const Each& each) {
    if (lines - l < kGroupLines) {
      some_lines<1>(acc, k, x, sum, l, each);
      return 1;
    }
    some_lines<kGroupLines>(acc, k, x, sum, l, each);
    return kGroupLines;
  }

  template <int L, int M, int P, class Each>
  static INFENG_INLINE void some_lines(typename V::I (&acc)[M][P], const uint8_t* const (&k)[P],
                                       const int8_t* const (&x)[M], const int32_t (&sum)[M], int l, const Each& each) {
    const uint8_t* line[P];
    const int8_t* from[M];
    INFENG_EACH (p, P) line[p] = k[p] + l * kLine;
    INFENG_EACH (m, M) from[m] = x[m] + l * kEach;
    const auto each_line = [&](int i) INFENG_INLINE_LAMBDA { each(l + i); };
    if constexpr (Bits == 8) {
      V::template dot_lines<8, M, P>(acc, line, L, from, sum, each_line);
    } else {
      V::template dot_nibbles<L, M, P>(acc, line, from, sum, each_line);
    }
  }
};

template <Vector V>
struct E4m3Keys {
  static constexpr bool kScaled = true;
  static constexpr int kScoreRows = 6;
  static constexpr int kScoreBlocks = V::kColumns;
  static constexpr int kEach = 1;

  static INFENG_INLINE void prepare(const float* q, int, SplitScratch& scratch, int v) { scratch.q[v] = q; }

  template <int M, int P, class Each, class Take>
  static INFENG_INLINE void scores(const Slab* slabs, int dim, const SplitScratch& scratch, int v, float scale,
                                   const Each& each, const Take& take) {
    const uint8_t* k[P];
    INFENG_EACH (p, P) k[p] = slabs[p].k<uint8_t>();
    float_scores<V, M, P>(
        [&](int p, int d) INFENG_INLINE_LAMBDA { return V::load_e4m3(k[p] + d * kLanes); }, dim, scratch.q + v,
        [&](int p) INFENG_INLINE_LAMBDA { return V::mul(V::load(slabs[p].k_scale()), V::set(scale)); }, each, take);
  }
};

template <Vector V>
struct Int8Values {
  static constexpr bool kScaled = true;
  static constexpr bool kConverted = true;
  static constexpr int kPerValue = 1;
  static constexpr int kBytes = kLanes;
  using Value = int8_t;

  static INFENG_INLINE typename V::F value(const int8_t* v) { return V::load_i8(v); }
  static INFENG_INLINE typename V::F value(const int8_t* v, int n) { return V::load_i8(v, n); }
};

// V of 8 or 4 bits is added in integers, by ops/attention_shares.h.
template <int Bits>
struct IntLines {
  static constexpr bool kScaled = true;
  static constexpr int kShareBits = Bits;
  static constexpr int kPerValue = 1;
  static constexpr int kBytes = 2 * Bits;
  using Value = int8_t;
};

template <Vector V>
struct Int4Values {
  static constexpr bool kScaled = true;
  static constexpr bool kConverted = true;
  static constexpr int kPerValue = kLanes;
  static constexpr int kBytes = kLanes / 2;
  struct Value {
    uint8_t pairs[kLanes / 2];  // columns i and i + 8; padding is 0
  };

  static INFENG_INLINE typename V::F value(const Value* v) { return V::load_i4(v->pairs); }
  static INFENG_INLINE typename V::F value(const Value* v, int) { return V::load_i4(v->pairs); }
};

template <Vector V>
struct E4m3Values {
  static constexpr bool kScaled = true;
  static constexpr bool kConverted = true;
  static constexpr int kPerValue = 1;
  static constexpr int kBytes = kLanes;
  using Value = uint8_t;

  static INFENG_INLINE typename V::F value(const uint8_t* v) { return V::load_e4m3(v); }
  static INFENG_INLINE typename V::F value(const uint8_t* v, int n) { return V::load_e4m3(v, n); }
};

// A format with a scale per token for K and for V. Formats with the same keys share the instances of
// ops/attention_scores.h, those with the same values the ones of ops/attention_values.h.
template <Vector V, uint32_t Format, bool Rotated, class CacheKeys, class CacheValues>
struct AttentionScaled {
  using Keys = CacheKeys;
  using Values = CacheValues;
  static constexpr uint32_t kFormat = Format;
  static constexpr bool kRotated = Rotated;

  static INFENG_INLINE void prepare(const float* q, int dim, SplitScratch& scratch, int v) {
    if constexpr (Rotated) {
      float* rotated = scratch.rotated + v * int(round_up(dim, kLanes));
      hadamard<V>(q, dim, 1.0f, rotated);
      q = rotated;
    }
    Keys::prepare(q, dim, scratch, v);
  }
};
template <Vector V>
using AttentionInt8 = AttentionScaled<V, INFENG_KV_INT8, false, IntKeys<V, 8>, Int8Values<V>>;
template <Vector V>
using AttentionInt8H = AttentionScaled<V, INFENG_KV_INT8_H, true, IntKeys<V, 8>, Int8Values<V>>;
template <Vector V>
using AttentionInt8I = AttentionScaled<V, INFENG_KV_INT8_I, false, IntKeys<V, 8>, IntLines<8>>;
template <Vector V>
using AttentionInt8HI = AttentionScaled<V, INFENG_KV_INT8_HI, true, IntKeys<V, 8>, IntLines<8>>;
template <Vector V>
using AttentionK8V4H = AttentionScaled<V, INFENG_KV_K8V4_H, true, IntKeys<V, 8>, Int4Values<V>>;
template <Vector V>
using AttentionInt4H = AttentionScaled<V, INFENG_KV_INT4_H, true, IntKeys<V, 4>, Int4Values<V>>;
template <Vector V>
using AttentionK8V4HI = AttentionScaled<V, INFENG_KV_K8V4_HI, true, IntKeys<V, 8>, IntLines<4>>;
template <Vector V>
using AttentionInt4HI = AttentionScaled<V, INFENG_KV_INT4_HI, true, IntKeys<V, 4>, IntLines<4>>;
template <Vector V>
using AttentionFp8H = AttentionScaled<V, INFENG_KV_FP8_H, true, E4m3Keys<V>, E4m3Values<V>>;

}  // namespace
}  // namespace infeng
#endif  // INFENG_OPS_ATTENTION_CACHE_H
