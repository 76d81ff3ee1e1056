// One split of attention for a block of virtual rows, and the combination of splits; attention.h has the formulas.
// SPDX-License-Identifier: Apache-2.0
#ifndef INFENG_OPS_ATTENTION_SPLIT_H
#define INFENG_OPS_ATTENTION_SPLIT_H

#include <infeng/ops/exp.h>
#include <infeng/ops/kv.h>
#include <infeng/ops/quantize.h>

namespace infeng {
namespace {

constexpr int kSplit = 256;       // positions
constexpr int kVirtualRows = 24;  // (row, query head) pairs of a block
constexpr int kScoreRows = 6;     // of these at once in registers
constexpr int kFetchAhead = 96;   // positions from the K that is used to the K that is fetched

constexpr int64_t first_visible(int64_t window, int64_t position) {
  return window > 0 && position >= window ? position - window + 1 : 0;
}

// A record is one split of one virtual row: m, l, the weight of the combination, then o[d] from float 16 on.
constexpr int64_t record_floats(int64_t head_dim) { return kLanes + (head_dim + kLanes - 1) / kLanes * kLanes; }

// Positions [begin, end) that a virtual row sees.
struct View {
  int64_t begin;
  int64_t end;
};

// Of one worker: scores of the block, and its queries in the form that the cache's dot product takes.
struct alignas(64) SplitScratch {
  float s[kVirtualRows][kSplit];
  int8_t qq[kVirtualRows][kMaxHeadDim];
  float qs[kVirtualRows];
  int32_t qsum[kVirtualRows];
  const float* q[kVirtualRows];
};

template <Vector V>
struct AttentionF32 {
  static constexpr uint32_t kFormat = INFENG_KV_F32;
  static constexpr bool kScales = false;

  static INFENG_INLINE void prepare(const float* q, int, SplitScratch& scratch, int v) { scratch.q[v] = q; }

  // s[m] = scores of 16 tokens for virtual rows [v, v + M); each(l) is called for every line of K.
  template <int M, class Each>
  static INFENG_INLINE void scores(const Slab& slab, int dim, const SplitScratch& scratch, int v, float scale,
                                   typename V::F (&s)[M], const Each& each) {
    const float* k = slab.k<float>();
    INFENG_EACH (m, M) s[m] = V::zero();
    for (int d = 0; d < dim; ++d) {
      each(d);
      const auto line = V::load(k + d * kLanes);
      INFENG_EACH (m, M) s[m] = V::fma(V::set(scratch.q[v + m][d]), line, s[m]);
    }
    INFENG_EACH (m, M) s[m] = V::mul(s[m], V::set(scale));
  }

  // The factor of V[t], 16 tokens at once.
  static INFENG_INLINE typename V::F weight(const Slab&, typename V::F p) { return p; }
  static INFENG_INLINE typename V::F value(const Slab& slab, int token, int d) {
    return V::load(slab.v<float>(token) + d);
  }
  static INFENG_INLINE typename V::F value(const Slab& slab, int token, int d, int n) {
    return V::load(slab.v<float>(token) + d, n);
  }
};

template <Vector V>
struct AttentionInt8 {
  static constexpr uint32_t kFormat = INFENG_KV_INT8;
  static constexpr bool kScales = true;

  static INFENG_INLINE void prepare(const float* q, int dim, SplitScratch& scratch, int v) {
    const Quantized r = quantize<V>(q, dim, scratch.qq[v], int(round_up(dim, kLanes)));
    scratch.qs[v] = r.scale;
    scratch.qsum[v] = r.sum;
  }

  template <int M, class Each>
  static INFENG_INLINE void scores(const Slab& slab, int dim, const SplitScratch& scratch, int v, float scale,
                                   typename V::F (&s)[M], const Each& each) {
    const uint8_t* const k[1] = {slab.k<uint8_t>()};
    const int8_t* x[M];
    int32_t sum[M];
    typename V::I acc[M][1];
    INFENG_EACH (m, M) {
      x[m] = scratch.qq[v + m];
      sum[m] = scratch.qsum[v + m];
    }
    V::template dot_lines<8, M, 1>(acc, k, dim / 4, x, sum, each);
    const auto ks = V::load(slab.k_scale());
    INFENG_EACH (m, M)
      s[m] = V::mul(V::to_float(acc[m][0]), V::mul(V::mul(V::set(scratch.qs[v + m]), ks), V::set(scale)));
  }

  static INFENG_INLINE typename V::F weight(const Slab& slab, typename V::F p) {
    return V::mul(p, V::load(slab.v_scale()));
  }
  static INFENG_INLINE typename V::F value(const Slab& slab, int token, int d) {
    return V::load_i8(slab.v<int8_t>(token) + d);
  }
  static INFENG_INLINE typename V::F value(const Slab& slab, int token, int d, int n) {
    return V::load_i8(slab.v<int8_t>(token) + d, n);
  }
};

// Virtual rows [from, from + rows) of one segment and kv head; virtual row v is row v / shared, head v % shared.
template <Vector V, class Cache>
struct SplitBlock {
  using F = typename V::F;
  const infeng_attention_args& args;
  const infeng_kv_segment& segment;
  int64_t shared, kv_head, from;
  int rows;
  SplitScratch& scratch;

  SplitBlock(const infeng_attention_args& a, const infeng_kv_segment& s, int64_t shared_heads, int64_t head_index,
             int64_t first, int count, SplitScratch& space)
      : args(a), segment(s), shared(shared_heads), kv_head(head_index), from(first), rows(count), scratch(space) {
    for (int v = 0; v < rows; ++v)
      Cache::prepare(row_of<float>(args.q, row(v)) + head(v) * args.q.strides[1], args.cache.head_dim, scratch, v);
  }

  int64_t row(int v) const { return segment.row_begin + (from + v) / shared; }
  int64_t head(int v) const { return kv_head * shared + (from + v) % shared; }
  View view(int v) const {
    const int64_t position = segment.pos0 + (from + v) / shared;
    return {first_visible(args.window, position), position + 1};
  }
  int64_t first_split() const { return view(0).begin / kSplit; }
  int64_t last_split() const { return ceil_div(view(rows - 1).end, kSplit); }

  // Fills the record of split j of every virtual row; one that sees nothing of it is left alone. Strides are floats.
  INFENG_NOINLINE void run(int64_t j, float* records, int64_t stride) const {
    // The union of what the block sees of this split, relative to its start.
    const Range all = {visible(0, j).begin, visible(rows - 1, j).end};
    balanced_blocks<kScoreRows>(
        rows, [&](int v, auto m) { v == 0 ? score<m.value, true>(j, v, all) : score<m.value, false>(j, v, all); });
    for (int v = 0; v < rows; ++v) softmax(j, v, records + v * stride);
    const int dim = args.cache.head_dim, full = dim / kLanes;
    for (int c = 0; c < full; c += V::kColumns)
      dispatch<V::kColumns>(full - c,
                            [&](auto columns) { values<columns.value, false>(j, c * kLanes, records, stride); });
    if (dim % kLanes) values<1, true>(j, full * kLanes, records, stride);
  }

 private:
  struct Range {
    int begin;
    int end;
  };

  // Positions of split j that virtual row v sees, relative to the split's start; empty if begin >= end.
  Range visible(int v, int64_t j) const {
    const View w = view(v);
    return {int(max_of(w.begin - j * kSplit, 0)), int(min_of(w.end - j * kSplit, kSplit))};
  }
  INFENG_INLINE Slab slab(int64_t j, int t) const {
    return slab_at(args.cache, segment.block_table[(j * kSplit + t) / kLanes], kv_head);
  }

  // The first rows to pass also fetch: K some blocks ahead, and V of the same block, which is due after the split's
  // scores. Slabs are scattered pieces of about 2 KB that no hardware prefetcher follows.
  template <int M, bool Fetch>
  INFENG_NOINLINE void score(int64_t j, int v, Range all) const {
    for (int t = all.begin / kLanes * kLanes; t < all.end; t += kLanes) {
      const Slab block = slab(j, t);
      F s[M];
      if constexpr (Fetch) {
        const int ahead = int(min_of(t + kFetchAhead, view(rows - 1).end - 1 - j * kSplit));
        const char* k = slab(j, ahead).template k<char>();
        const char* values = block.template v<char>(0);
        if constexpr (Cache::kScales) V::prefetch(slab(j, ahead).k_scale()), V::prefetch(block.v_scale());
        Cache::template scores<M>(block, args.cache.head_dim, scratch, v, args.scale, s,
                                  [&](int l) INFENG_INLINE_LAMBDA {
                                    V::prefetch(k + l * kLine);
                                    V::prefetch(values + l * kLine);
                                  });
      } else {
        Cache::template scores<M>(block, args.cache.head_dim, scratch, v, args.scale, s, Nothing{});
      }
      INFENG_EACH (m, M) V::store(scratch.s[v + m] + t, s[m]);
    }
  }

  // Scores of row v become the factors of V; the record gets m, l and o = +0.
  void softmax(int64_t j, int v, float* record) const {
    const Range seen = visible(v, j);
    if (seen.begin >= seen.end) return;
    float* s = scratch.s[v];
    const int begin = seen.begin / kLanes * kLanes, end = int(round_up(seen.end, kLanes));
    for (int t = begin; t < seen.begin; ++t) s[t] = -__builtin_inff();
    for (int t = seen.end; t < end; ++t) s[t] = -__builtin_inff();
    F largest = V::load(s + begin);
    for (int t = begin + kLanes; t < end; t += kLanes) largest = V::max(largest, V::load(s + t));
    const float m = V::max_lanes(largest);
    F l = V::zero();
    for (int t = begin; t < end; t += kLanes) {
      const F p = exp<V>(V::sub(V::load(s + t), V::set(m)));
      l = V::add(l, p);
      V::store(s + t, Cache::weight(slab(j, t), p));
    }
    record[0] = m;
    record[1] = V::tree(l);
    for (int d = 0; d < args.cache.head_dim; d += kLanes) V::store(record + kLanes + d, V::zero());
  }

  // o[d .. d + 16 C) of all virtual rows. Rows of one register block share the tokens that all of them see; what only
  // some of them see, at either end, is added row by row, so that each row's order stays ascending.
  template <int C, bool Tail>
  void values(int64_t j, int d, float* records, int64_t stride) const {
    balanced_blocks<kScoreRows>(rows, [&](int v, auto count) {
      constexpr int M = count.value;
      Range common = {0, kSplit};
      for (int m = 0; m < M; ++m) {
        const Range seen = visible(v + m, j);
        common = {int(max_of(common.begin, seen.begin)), int(min_of(common.end, seen.end))};
      }
      if (common.begin >= common.end) common = {kSplit, kSplit};
      for (int m = 0; m < M; ++m) {
        const Range seen = visible(v + m, j);
        accumulate<1, C, Tail>(j, v + m, seen.begin, int(min_of(seen.end, common.begin)), d, records, stride);
      }
      accumulate<M, C, Tail>(j, v, common.begin, common.end, d, records, stride);
      for (int m = 0; m < M; ++m)
        accumulate<1, C, Tail>(j, v + m, common.end, visible(v + m, j).end, d, records, stride);
    });
  }

  template <int M, int C, bool Tail>
  INFENG_NOINLINE void accumulate(int64_t j, int v, int begin, int end, int d, float* records, int64_t stride) const {
    if (begin >= end) return;
    float* o = records + v * stride + kLanes + d;
    const float* p = scratch.s[v];
    F acc[M][C];
    INFENG_EACH (m, M)
      INFENG_EACH (c, C) acc[m][c] = V::load(o + m * stride + c * kLanes);
    const int n = args.cache.head_dim - d;
    for (int t = begin; t < end;) {
      const Slab block = slab(j, t);
      const int stop = int(min_of(end, t / kLanes * kLanes + kLanes));
      for (; t < stop; ++t) {
        F value[C];
        INFENG_EACH (c, C)
          value[c] = Tail ? Cache::value(block, t % kLanes, d, n) : Cache::value(block, t % kLanes, d + c * kLanes);
        INFENG_EACH (m, M) {
          const F factor = V::set(p[m * kSplit + t]);
          INFENG_EACH (c, C) acc[m][c] = V::fma(factor, value[c], acc[m][c]);
        }
      }
    }
    INFENG_EACH (m, M)
      INFENG_EACH (c, C) V::store(o + m * stride + c * kLanes, acc[m][c]);
  }
};

// out[0 .. dim) from `count` consecutive records.
template <Vector V>
INFENG_INLINE void combine_splits(float* records, int64_t count, int dim, float* out) {
  const int64_t floats = record_floats(dim);
  float largest = records[0];
  for (int64_t j = 1; j < count; ++j) largest = records[j * floats] > largest ? records[j * floats] : largest;
  auto sum = V::zero();
  for (int64_t j = 0; j < count; ++j) {
    float* r = records + j * floats;
    const auto weight = exp<V>(V::set(r[0] - largest));
    V::store(r + 2, weight, 1);
    sum = V::fma(V::set(r[1]), weight, sum);
  }
  for (int d = 0; d < dim; d += kLanes) {
    auto o = V::zero();
    for (int64_t j = 0; j < count; ++j) {
      const float* r = records + j * floats;
      o = V::fma(V::load(r + kLanes + d), V::set(r[2]), o);
    }
    V::store(out + d, V::div(o, sum));
  }
}

}  // namespace
}  // namespace infeng
#endif  // INFENG_OPS_ATTENTION_SPLIT_H
