// attention: causal softmax(q K^T * scale) V of each row and head over its sequence's paged cache.
//   positions are cut into splits [256 j, 256 j + 256); in each, over visible t ascending:
//     s[t] = score;  m = max s;  p[t] = exp(s[t] - m);  l = tree(lane[t mod 16] += p[t]);  o[d] = fma(p[t], V[t][d],
//     o[d])
//   M = max m_j;  w_j = exp(m_j - M);  j ascending:  L = fma(l_j, w_j, L), O = fma(o_j, w_j, O);  out = O / L
//   int8: q is quantized per head; s = float(dot) * ((qs * ks[t]) * scale), and o takes p[t] * vs[t]
// The query heads that share a key/value head, times the rows of a segment, are the rows of one small matrix product: K
// is stored as a weight tile with tokens in lanes, V rows have columns in lanes. A block of such "virtual rows"
// (row-major, heads minor) passes over a split while its K and V stay in the first-level cache. Two plans, one set of
// bytes. `Rows`: a tile is one block and all its splits, with private scratch. `Splits`, for few rows: a tile is one
// block and one split, into shared memory; a second phase combines. SPDX-License-Identifier: Apache-2.0
#ifndef INFENG_OPS_ATTENTION_H
#define INFENG_OPS_ATTENTION_H

#include <infeng/ops/attention_split.h>

namespace infeng {
namespace {

// What one call's tiles are: for each segment, kv heads x blocks of virtual rows (x splits).
struct AttentionShape {
  const infeng_attention_args& args;
  int64_t shared;  // query heads per kv head

  explicit AttentionShape(const infeng_attention_args& a) : args(a), shared(a.q.shape[1] / a.cache.kv_heads) {}

  const infeng_kv_segment& segment(int64_t i) const { return *segment_at(args.segments, args.segment_stride, i); }
  int64_t virtual_rows(const infeng_kv_segment& s) const { return (s.row_end - s.row_begin) * shared; }
  int64_t blocks(const infeng_kv_segment& s) const { return ceil_div(virtual_rows(s), kVirtualRows); }
  int64_t first_split(const infeng_kv_segment& s) const { return first_visible(args.window, s.pos0) / kSplit; }
  int64_t splits(const infeng_kv_segment& s) const {
    const int64_t end = s.pos0 + (s.row_end - s.row_begin);
    return ceil_div(end, kSplit) - first_split(s);
  }
  // Splits that any segment has at most: the stride of a row's records.
  int64_t most_splits() const {
    int64_t most = 1;
    for (int32_t i = 0; i < args.segment_count; ++i) most = max_of(most, splits(segment(i)));
    return most;
  }
};

template <Vector V, class Cache>
struct AttentionBase {
  static constexpr uint32_t kOp = INFENG_OP_ATTENTION;
  static constexpr uint32_t kFuses = INFENG_EPILOGUE_BIT(INFENG_EPILOGUE_QUANTIZE);

  static int32_t accepts(const infeng_problem* p) {
    return p->op == kOp && p->kv_format == Cache::kFormat && (p->epilogues & ~kFuses) == 0 &&
           head_dim_fits(Cache::kFormat, p->head_dim) && (p->epilogues == 0 || p->head_dim % kGroup == 0) &&
           p->kv_heads > 0 && p->heads % p->kv_heads == 0;
  }

 protected:
  static infeng_status check(const infeng_attention_args& args, infeng_worker* worker) {
    if (!cache_fits(args.cache, Cache::kFormat))
      return fail(worker, INFENG_INVALID_ARGUMENT, "cache has another format or block size");
    if (!epilogues_within(args.common, kFuses) || (args.common.epilogue_count && args.cache.head_dim % kGroup))
      return fail(worker, INFENG_UNIMPLEMENTED,
                  "attention fuses quantize only, and only where head_dim is a multiple of 64");
    return INFENG_OK;
  }

  // Writes one row and head from its records, one per split.
  static void finish(const infeng_attention_args& args, int64_t row, int64_t head, float* records, int64_t count) {
    const int dim = args.cache.head_dim;
    alignas(64) float out[kMaxHeadDim];
    combine_splits<V>(records, count, dim, out);
    const infeng_epilogue* e = args.common.epilogues;
    for (uint32_t i = 0; i < args.common.epilogue_count; ++i, e = next_epilogue(e))
      quantize_columns<V>(e->act, row, head * dim, out, dim);
    if (!args.out.data) return;
    float* target = row_of<float>(args.out, row) + head * dim;
    for (int d = 0; d < dim; d += kLanes) V::store(target + d, V::load(out + d), dim - d);
  }
};

// Any number of rows: a tile is one block of virtual rows of one kv head.
template <Vector V, class Cache>
struct AttentionRows : AttentionBase<V, Cache> {
  using Base = AttentionBase<V, Cache>;

  static infeng_status workspace(const infeng_problem* p, infeng_workspace* out) {
    out->align = kLine;
    out->shared = 0;
    out->per_worker = int64_t(sizeof(SplitScratch)) + kVirtualRows * (ceil_div(p->context, kSplit) + 1) *
                                                          record_floats(p->head_dim) * int64_t(sizeof(float));
    return INFENG_OK;
  }

  static int64_t tiles(const infeng_args* common, int32_t) {
    const AttentionShape shape(*(const infeng_attention_args*)common);
    int64_t tiles = 0;
    for (int32_t i = 0; i < shape.args.segment_count; ++i)
      tiles += shape.blocks(shape.segment(i)) * shape.args.cache.kv_heads;
    return tiles;
  }

  static infeng_status run(const infeng_args* common, int32_t, int64_t first, int64_t last, infeng_worker* worker) {
    const auto& args = *(const infeng_attention_args*)common;
    if (const infeng_status status = Base::check(args, worker)) return status;
    const AttentionShape shape(args);
    auto& scratch = *(SplitScratch*)worker->private_;
    float* records = (float*)(&scratch + 1);
    const int64_t floats = record_floats(args.cache.head_dim);
    int64_t begin = 0;
    for (int32_t i = 0; i < args.segment_count; ++i) {
      const infeng_kv_segment& s = shape.segment(i);
      const int64_t blocks = shape.blocks(s), tiles = blocks * args.cache.kv_heads;
      for (int64_t tile = max_of(first, begin); tile < min_of(last, begin + tiles); ++tile) {
        const int64_t kv_head = (tile - begin) / blocks, from = (tile - begin) % blocks * kVirtualRows;
        SplitBlock<V, Cache> block(args, s, shape.shared, kv_head, from,
                                   int(min_of(kVirtualRows, shape.virtual_rows(s) - from)), scratch);
        const int64_t stride = (block.last_split() - block.first_split()) * floats;
        for (int64_t j = block.first_split(); j < block.last_split(); ++j)
          block.run(j, records + (j - block.first_split()) * floats, stride);
        for (int v = 0; v < block.rows; ++v) {
          const int64_t j0 = block.view(v).begin / kSplit, j1 = ceil_div(block.view(v).end, kSplit);
          Base::finish(args, block.row(v), block.head(v), records + v * stride + (j0 - block.first_split()) * floats,
                       j1 - j0);
        }
      }
      begin += tiles;
    }
    return INFENG_OK;
  }
};

// Few rows: splits are tiles of their own, then rows x kv heads combine them.
template <Vector V, class Cache>
struct AttentionSplits : AttentionBase<V, Cache> {
  using Base = AttentionBase<V, Cache>;
  static constexpr int64_t kMostRows = 8;

  static int32_t accepts(const infeng_problem* p) { return Base::accepts(p) && p->rows_max <= kMostRows; }

  static infeng_status workspace(const infeng_problem* p, infeng_workspace* out) {
    out->align = kLine;
    out->shared = p->rows_max * p->heads * (ceil_div(p->context, kSplit) + 1) * record_floats(p->head_dim) *
                  int64_t(sizeof(float));
    out->per_worker = int64_t(sizeof(SplitScratch));
    return INFENG_OK;
  }

  static int32_t phases(const infeng_args*) { return 2; }

  static int64_t tiles(const infeng_args* common, int32_t phase) {
    const AttentionShape shape(*(const infeng_attention_args*)common);
    int64_t tiles = 0;
    for (int32_t i = 0; i < shape.args.segment_count; ++i) tiles += segment_tiles(shape, shape.segment(i), phase);
    return tiles;
  }

  static infeng_status run(const infeng_args* common, int32_t phase, int64_t first, int64_t last,
                           infeng_worker* worker) {
    const auto& args = *(const infeng_attention_args*)common;
    if (const infeng_status status = Base::check(args, worker)) return status;
    const AttentionShape shape(args);
    const int64_t stride = shape.most_splits() * record_floats(args.cache.head_dim);
    int64_t begin = 0;
    for (int32_t i = 0; i < args.segment_count; ++i) {
      const infeng_kv_segment& s = shape.segment(i);
      const int64_t tiles = segment_tiles(shape, s, phase);
      for (int64_t tile = max_of(first, begin); tile < min_of(last, begin + tiles); ++tile) {
        if (phase == 0) {
          split_tile(shape, s, tile - begin, stride, *(SplitScratch*)worker->private_, (float*)worker->shared);
        } else {
          combine_tile(shape, s, tile - begin, stride, (float*)worker->shared);
        }
      }
      begin += tiles;
    }
    return INFENG_OK;
  }

 private:
  static int64_t segment_tiles(const AttentionShape& shape, const infeng_kv_segment& s, int32_t phase) {
    const int64_t heads = shape.args.cache.kv_heads;
    return phase == 0 ? shape.splits(s) * shape.blocks(s) * heads : (s.row_end - s.row_begin) * heads;
  }

  // Records of (row, head) start at (row * heads + head) * stride, from the segment's first split on.
  static void split_tile(const AttentionShape& shape, const infeng_kv_segment& s, int64_t tile, int64_t stride,
                         SplitScratch& scratch, float* records) {
    const auto& args = shape.args;
    const int64_t splits = shape.splits(s), blocks = shape.blocks(s), floats = record_floats(args.cache.head_dim);
    const int64_t split = tile % splits, kv_head = tile / splits / blocks, from = tile / splits % blocks * kVirtualRows;
    SplitBlock<V, Cache> block(args, s, shape.shared, kv_head, from,
                               int(min_of(kVirtualRows, shape.virtual_rows(s) - from)), scratch);
    alignas(64) float local[kVirtualRows * record_floats(kMaxHeadDim)];
    block.run(shape.first_split(s) + split, local, floats);
    for (int v = 0; v < block.rows; ++v) {
      float* target = records + (block.row(v) * args.q.shape[1] + block.head(v)) * stride + split * floats;
      for (int64_t c = 0; c < floats; c += kLanes) V::store(target + c, V::load(local + v * floats + c));
    }
  }

  static void combine_tile(const AttentionShape& shape, const infeng_kv_segment& s, int64_t tile, int64_t stride,
                           float* records) {
    const auto& args = shape.args;
    const int64_t row = s.row_begin + tile / args.cache.kv_heads, kv_head = tile % args.cache.kv_heads;
    const int64_t position = s.pos0 + (row - s.row_begin), floats = record_floats(args.cache.head_dim);
    const int64_t j0 = first_visible(args.window, position) / kSplit, j1 = ceil_div(position + 1, kSplit);
    for (int64_t head = kv_head * shape.shared; head < (kv_head + 1) * shape.shared; ++head)
      Base::finish(args, row, head,
                   records + (row * args.q.shape[1] + head) * stride + (j0 - shape.first_split(s)) * floats, j1 - j0);
  }
};

}  // namespace
}  // namespace infeng
#endif  // INFENG_OPS_ATTENTION_H
