// What attention does differently for each cache format: how a query is prepared, the scores of whole blocks of 16
// tokens, the factors of V, and V itself; docs/numerics.md has the formulas. SPDX-License-Identifier: Apache-2.0
#ifndef INFENG_OPS_ATTENTION_CACHE_H
#define INFENG_OPS_ATTENTION_CACHE_H

#include <infeng/ops/kv.h>
#include <infeng/ops/quantize.h>

namespace infeng {
namespace {

constexpr int kSplit = 256;                    // positions
constexpr int kVirtualRows = 48;               // most (row, query head) pairs of a block
constexpr int kWideFloats = 4096;              // of V, converted at a time: a third of a first-level cache
constexpr int kScoreStride = kSplit + kLanes;  // floats; no power of two, which would crowd rows into few cache sets

// Positions [begin, end), relative to a split's start.
struct Range {
  int begin;
  int end;
};

// Of one worker: what a block knows of its rows, and their scores and sums in one split.
struct alignas(64) SplitScratch {
  float s[kVirtualRows][kScoreStride];  // scores, then factors of V
  float o[kVirtualRows * kMaxHeadDim];  // rows of head_dim rounded up to 16
  float wide[kLanes * kMaxHeadDim];     // V of some blocks as f32, the same rows
  float largest[kVirtualRows][kLanes];  // of the scores in each lane
  float v_scale[kSplit];
  int8_t qq[kVirtualRows * kMaxHeadDim];  // the same rows
  float qs[kVirtualRows];
  int32_t qsum[kVirtualRows];
  const float* q[kVirtualRows];
  Range seen[kVirtualRows];
};

// Scores of the float caches: a = fma(q[d], K[t][d], a), d ascending, then a * scale; load(p, d) gives 16 tokens of d.
template <Vector V, int M, int P, class Load, class Each, class Take>
INFENG_INLINE void float_scores(const Load& load, int dim, const float* const* q, float scale, const Each& each,
                                const Take& take) {
  typename V::F a[M][P];
  INFENG_EACH (m, M)
    INFENG_EACH (p, P) a[m][p] = V::zero();
  for (int d = 0; d < dim; ++d) {
    each(d);
    typename V::F line[P];
    INFENG_EACH (p, P) line[p] = load(p, d);
    INFENG_EACH (m, M) {
      const auto x = V::set(q[m][d]);
      INFENG_EACH (p, P) a[m][p] = V::fma(x, line[p], a[m][p]);
    }
  }
  INFENG_EACH (p, P)
    INFENG_EACH (m, M) take(m, p, V::mul(a[m][p], V::set(scale)));
}

template <Vector V>
struct AttentionF32 {
  static constexpr uint32_t kFormat = INFENG_KV_F32;
  static constexpr int kScoreRows = 6;              // rows of one call of `scores` at most
  static constexpr int kScoreBlocks = V::kColumns;  // blocks of 16 tokens of one call at most
  static constexpr int kLineBytes = 64;             // of K that one call of `each` stands for
  static constexpr bool kScaled = false;            // V has a scale per token
  static constexpr bool kConverted = false;         // V is not f32
  using Value = float;

  static INFENG_INLINE void prepare(const float* q, int, SplitScratch& scratch, int v) { scratch.q[v] = q; }

  // Calls take(m, p, s) with the scores of virtual rows v + m, m < M, for the 16 tokens of slab p, p < P; each(l) is
  // called for every line of a slab's K.
  template <int M, int P, class Each, class Take>
  static INFENG_INLINE void scores(const Slab* slabs, int dim, const SplitScratch& scratch, int v, float scale,
                                   const Each& each, const Take& take) {
    const float* k[P];
    INFENG_EACH (p, P) k[p] = slabs[p].k<float>();
    float_scores<V, M, P>([&](int p, int d) INFENG_INLINE_LAMBDA { return V::load(k[p] + d * kLanes); }, dim,
                          scratch.q + v, scale, each, take);
  }

  static INFENG_INLINE typename V::F value(const float* v) { return V::load(v); }
  static INFENG_INLINE typename V::F value(const float* v, int n) { return V::load(v, n); }
};

// As f32, widened when it is read.
template <Vector V>
struct AttentionF16 {
  static constexpr uint32_t kFormat = INFENG_KV_F16;
  static constexpr int kScoreRows = 6;
  static constexpr int kScoreBlocks = V::kColumns;
  static constexpr int kLineBytes = 32;
  static constexpr bool kScaled = false;
  static constexpr bool kConverted = true;
  using Value = uint16_t;

  static INFENG_INLINE void prepare(const float* q, int, SplitScratch& scratch, int v) { scratch.q[v] = q; }

  template <int M, int P, class Each, class Take>
  static INFENG_INLINE void scores(const Slab* slabs, int dim, const SplitScratch& scratch, int v, float scale,
                                   const Each& each, const Take& take) {
    const uint16_t* k[P];
    INFENG_EACH (p, P) k[p] = slabs[p].k<uint16_t>();
    float_scores<V, M, P>([&](int p, int d) INFENG_INLINE_LAMBDA { return V::load_f16(k[p] + d * kLanes); }, dim,
                          scratch.q + v, scale, each, take);
  }

  static INFENG_INLINE typename V::F value(const uint16_t* v) { return V::load_f16(v); }
  static INFENG_INLINE typename V::F value(const uint16_t* v, int n) { return V::load_f16(v, n); }
};

template <Vector V>
struct AttentionInt8 {
  static constexpr uint32_t kFormat = INFENG_KV_INT8;
  static constexpr int kScoreRows = V::kBlockRows;
  static constexpr int kScoreBlocks = 4;
  static constexpr int kLineBytes = 64;
  static constexpr bool kScaled = true;
  static constexpr bool kConverted = true;
  using Value = int8_t;

  static INFENG_INLINE void prepare(const float* q, int dim, SplitScratch& scratch, int v) {
    const int width = int(round_up(dim, kLanes));
    const Quantized r = quantize<V>(q, dim, scratch.qq + v * width, width);
    scratch.qs[v] = r.scale;
    scratch.qsum[v] = r.sum;
  }

  template <int M, int P, class Each, class Take>
  static INFENG_INLINE void scores(const Slab* slabs, int dim, const SplitScratch& scratch, int v, float scale,
                                   const Each& each, const Take& take) {
    const int width = int(round_up(dim, kLanes)), lines = dim / 4;
    const uint8_t* k[P];
    const int8_t* x[M];
    int32_t sum[M];
    typename V::I acc[M][P];
    INFENG_EACH (p, P) k[p] = slabs[p].k<uint8_t>();
    INFENG_EACH (m, M) {
      x[m] = scratch.qq + (v + m) * width;
      sum[m] = scratch.qsum[v + m];
    }
    if (lines < kGroupLines) {
      some_lines<1, M, P>(acc, k, x, sum, 0, each);
    } else {
      some_lines<kGroupLines, M, P>(acc, k, x, sum, 0, each);
    }
    for (int l = lines < kGroupLines ? 1 : kGroupLines; l < lines;) {
      typename V::I more[M][P];
      INFENG_EACH (m, M) sum[m] = 0;
      if (lines - l < kGroupLines) {
        some_lines<1, M, P>(more, k, x, sum, l, each);
        l += 1;
      } else {
        some_lines<kGroupLines, M, P>(more, k, x, sum, l, each);
        l += kGroupLines;
      }
      INFENG_EACH (m, M)
        INFENG_EACH (p, P) acc[m][p] = V::iadd(acc[m][p], more[m][p]);
    }
    INFENG_EACH (p, P) {
      const auto ks = V::load(slabs[p].k_scale());
      INFENG_EACH (m, M)
        take(m, p, V::mul(V::to_float(acc[m][p]), V::mul(V::mul(V::set(scratch.qs[v + m]), ks), V::set(scale))));
    }
  }

  static INFENG_INLINE typename V::F value(const int8_t* v) { return V::load_i8(v); }
  static INFENG_INLINE typename V::F value(const int8_t* v, int n) { return V::load_i8(v, n); }

 private:
  static constexpr int kGroupLines = kGroup / 4;

  // The dot over lines [l, l + L), a constant number: a loop of unknown length keeps its sums in memory.
  template <int L, int M, int P, class Each>
  static INFENG_INLINE void some_lines(typename V::I (&acc)[M][P], const uint8_t* const (&k)[P],
                                       const int8_t* const (&x)[M], const int32_t (&sum)[M], int l, const Each& each) {
    const uint8_t* line[P];
    const int8_t* four[M];
    INFENG_EACH (p, P) line[p] = k[p] + l * kLine;
    INFENG_EACH (m, M) four[m] = x[m] + l * 4;
    V::template dot_lines<8, M, P>(acc, line, L, four, sum, [&](int i) INFENG_INLINE_LAMBDA { each(l + i); });
  }
};

}  // namespace
}  // namespace infeng
#endif  // INFENG_OPS_ATTENTION_CACHE_H
