// attention: causal softmax(q K^T * scale) V of each row and head over its sequence's paged cache.
//   positions are cut into splits [256 j, 256 j + 256); in each, over visible t ascending:
//     s[t] = score;  m = max s;  p[t] = exp(s[t] - m);  l = tree(lane[t mod 16] += p[t])
//     o[d] = fma(p[t], V[t][d], o[d])
//   M = max m_j;  w_j = exp(m_j - M);  j ascending:  L = fma(l_j, w_j, L), O = fma(o_j, w_j, O);  out = O / L
//   softcap c: s[t] = c * tanh(s[t] / c) first;  a head's sink is one more m, and L = L + exp(sink - M) at the end
//   int8: q is quantized per head; s = float(dot) * ((qs * ks[t]) * scale), and o adds p[t] * vs[t] * V
//   int8i, int8hi, k8v4hi, int4hi: o is an integer sum (ops/attention_shares.h)
//   formats with an h in their names: q is rotated first, and out last (ops/hadamard.h)
//
// The "virtual rows" of a kv head are all pairs of a row of a segment and a query head that shares the kv head (heads
// vary fastest). They are the rows of one small matrix product: K is stored as a weight tile with tokens in lanes, V
// has columns in lanes. A block of virtual rows passes over a split while its K and V stay in the L1 cache. Two plans
// compute the same bytes. `Rows`: a tile is one block with all its splits, in private scratch. `Splits`, for few rows:
// a tile is one block and one split, with records in shared memory, and a second phase combines them. In both, one
// worker finishes the heads whose columns are quantized together, one after the other.
// SPDX-License-Identifier: Apache-2.0
#ifndef INFENG_OPS_ATTENTION_H
#define INFENG_OPS_ATTENTION_H

#include <infeng/ops/attention_combine.h>
#include <infeng/ops/attention_split.h>

namespace infeng {
namespace {

// The most virtual rows of a block, given the splits that its rows see: long rows get smaller blocks, so that a block's
// records stay in the L2 cache.
constexpr int64_t kRecords = 2048, kLeastVirtualRows = 8;
INFENG_INLINE int64_t most_virtual_rows(int64_t splits) {
  return min_of(kVirtualRows, max_of(kRecords / max_of(splits, 1), kLeastVirtualRows));
}

// The tiles of one call: for each segment, kv heads x blocks of virtual rows (x splits).
struct AttentionShape {
  const infeng_attention_args& args;
  const infeng_kv_cache& cache;
  int64_t shared;    // query heads per kv head
  int64_t together;  // query heads of one block, which fill a wide group

  explicit AttentionShape(const infeng_attention_args& a)
      : args(a),
        cache(*a.cache),
        shared(a.q.shape[1] / a.cache->kv_heads),
        together(has_wide(a.common) ? kWidestGroup / a.cache->head_dim : 1) {}

  const infeng_kv_segment& segment(int64_t i) const { return *segment_at(args.segments, args.segment_stride, i); }
  int64_t virtual_rows(const infeng_kv_segment& s) const { return (s.row_end - s.row_begin) * shared; }
  int64_t blocks(const infeng_kv_segment& s) const {
    return ceil_div(virtual_rows(s), most_virtual_rows(splits(s)) / together * together);
  }
  int64_t block_rows(const infeng_kv_segment& s) const {
    return round_up(ceil_div(virtual_rows(s), max_of(blocks(s), 1)), together);
  }
  int64_t first_split(const infeng_kv_segment& s) const { return first_visible(args.window, s.pos0) / kSplit; }
  int64_t splits(const infeng_kv_segment& s) const {
    const int64_t end = s.pos0 + (s.row_end - s.row_begin);
    return ceil_div(end, kSplit) - first_split(s);
  }
  template <Vector V, class Cache>
  SplitBlock<V, Cache> block(const infeng_kv_segment& s, int64_t kv_head, int64_t index, int slot,
                             SplitScratch& scratch) const {
    const int64_t rows = block_rows(s), from = index * rows;
    return {args, s, shared, kv_head, from, int(min_of(rows, virtual_rows(s) - from)), slot, scratch};
  }
  // The most splits of any segment, which is the stride of a row's records.
  int64_t most_splits() const {
    int64_t most = 1;
    for (int32_t i = 0; i < args.segment_count; ++i) most = max_of(most, splits(segment(i)));
    return most;
  }
};

// Whether heads fill wide groups of columns.
constexpr bool divides_groups(int64_t dim) { return dim >= kGroup && dim % kGroup == 0 && kWidestGroup % dim == 0; }

// State of finish_head() from head to head: up to 256 columns that are quantized together.
struct Finished {
  alignas(64) float columns[kMaxHeadDim];
};

// Writes one row and head from its records, one per split; the heads of a wide group come in order.
template <Vector V>
INFENG_NOINLINE void finish_head(const infeng_attention_args& args, bool rotated, int64_t row, int64_t head,
                                 float* records, int64_t count, Finished& finished) {
  const int dim = args.cache->head_dim;
  const int64_t begin = divides_groups(dim) ? head * dim % kWidestGroup : 0;
  float* out = finished.columns + begin;
  combine_splits<V>(records, count, dim, args.sinks ? args.sinks + head : nullptr, out);
  if (rotated) hadamard<V>(out, dim, 1.0f, out);
  for (uint32_t i = 0; i < args.common.epilogue_count; ++i) {
    const infeng_epilogue* e = args.common.epilogues[i];
    if (!is_wide(*e))
      quantize_columns<V>(act_of(e), row, head * dim, out, dim);
    else if (begin + dim == kWidestGroup)
      quantize_wide<V>(act_of(e), row, head * dim - begin, finished.columns, kWidestGroup);
  }
  if (!args.out.data) return;
  float* target = row_of<float>(args.out, row) + head * dim;
  for (int d = 0; d < dim; d += kLanes) V::store(target + d, V::load(out + d), dim - d);
}

template <Vector V, class Cache>
struct AttentionBase {
  static constexpr uint32_t kOp = INFENG_OP_ATTENTION;
  static constexpr uint32_t kFuses = INFENG_EPILOGUE_BIT(INFENG_EPILOGUE_QUANTIZE);
  static constexpr uint64_t kHandles = INFENG_NEED_BIT(INFENG_NEED_WINDOW) | INFENG_NEED_BIT(INFENG_NEED_SOFTCAP) |
                                       INFENG_NEED_BIT(INFENG_NEED_SINKS) | kHandlesWide;

  static int32_t accepts(const infeng_problem* p) {
    return p->op == kOp && p->kv_format == Cache::kFormat && head_dim_fits(Cache::kFormat, p->head_dim) &&
           p->kv_heads > 0 && p->heads % p->kv_heads == 0 && fuses(*p, p->heads / p->kv_heads, p->head_dim);
  }

 protected:
  static infeng_status check(const infeng_attention_args& args, infeng_worker* worker) {
    if (!cache_fits(*args.cache, Cache::kFormat))
      return fail(worker, INFENG_INVALID_ARGUMENT, "cache has another format or block size");
    if (!fuses(args.common, args.q.shape[1] / args.cache->kv_heads, args.cache->head_dim))
      return fail(worker, INFENG_UNIMPLEMENTED,
                  "attention fuses quantize only, and only where head_dim is a multiple of 64 (or, in wide groups, "
                  "where heads that share keys fill groups of 256)");
    return INFENG_OK;
  }

  // Whether a list is QUANTIZE of whole heads, in wide groups of the heads that share a kv head.
  template <class Holder>
  static bool fuses(const Holder& holder, int64_t shared, int64_t dim) {
    const bool fills = divides_groups(dim) && shared * dim % kWidestGroup == 0;
    return epilogues_within(holder, kFuses, fills) && (holder.epilogue_count == 0 || dim % kGroup == 0);
  }

  // The most splits that a row of the problem sees.
  static int64_t splits(const infeng_problem* p) { return ceil_div(p->context, kSplit) + 1; }
};

// Any number of rows: a tile is one block of virtual rows of one kv head. Later rows see more, so they come first.
template <Vector V, class Cache>
struct AttentionRows : AttentionBase<V, Cache> {
  using Base = AttentionBase<V, Cache>;

  static infeng_status workspace(const infeng_problem* p, infeng_workspace* out) {
    const int64_t splits = Base::splits(p);
    const int64_t rows = min_of(p->rows_max * (p->heads / p->kv_heads), kVirtualRows);
    const int64_t records = min_of(rows * splits, max_of(kRecords, kLeastVirtualRows * splits));
    out->align = kLine;
    out->shared = 0;
    out->per_worker = int64_t(sizeof(SplitScratch)) + records * record_floats(p->head_dim) * int64_t(sizeof(float));
    return INFENG_OK;
  }

  static int64_t tiles(const infeng_args* common, int32_t) {
    const AttentionShape shape(*(const infeng_attention_args*)common);
    int64_t tiles = 0;
    for (int32_t i = 0; i < shape.args.segment_count; ++i)
      tiles += shape.blocks(shape.segment(i)) * shape.cache.kv_heads;
    return tiles;
  }

  static infeng_status run(const infeng_args* common, int32_t, int64_t first, int64_t last, infeng_worker* worker) {
    const auto& args = *(const infeng_attention_args*)common;
    if (const infeng_status status = Base::check(args, worker)) return status;
    const AttentionShape shape(args);
    auto& scratch = *(SplitScratch*)worker->private_;
    const auto block_of = [&](int32_t i, int64_t index) {
      const infeng_kv_segment& s = shape.segment(i);
      const int64_t blocks = shape.blocks(s);
      return shape.template block<V, Cache>(s, index / blocks, blocks - 1 - index % blocks, 0, scratch);
    };
    const auto tiles_of = [&](int32_t i) {
      return i < args.segment_count ? shape.blocks(shape.segment(i)) * shape.cache.kv_heads : 0;
    };
    const auto first_slabs = [&](int32_t i, int64_t index) {
      if (index >= tiles_of(i)) return Slabs{};
      const auto block = block_of(i, index);
      return block.slabs(block.first_split());
    };
    int64_t begin = 0;
    for (int32_t i = 0; i < args.segment_count; ++i) {
      const int64_t tiles = tiles_of(i);
      for (int64_t tile = max_of(first, begin); tile < min_of(last, begin + tiles); ++tile) {
        const int64_t index = tile - begin;
        run_block(args, block_of(i, index), tile > first,
                  index + 1 < tiles ? first_slabs(i, index + 1) : first_slabs(i + 1, 0), (float*)(&scratch + 1));
      }
      begin += tiles;
    }
    return INFENG_OK;
  }

 private:
  static void run_block(const infeng_attention_args& args, const SplitBlock<V, Cache>& block, bool fetched,
                        const Slabs& after, float* records) {
    const int64_t floats = record_floats(args.cache->head_dim), j0 = block.first_split(), j1 = block.last_split();
    const auto record = [&](int v, int64_t j) { return records + (v * (j1 - j0) + j - j0) * floats; };
    block.prepare();
    block.run(j0, j1, record, fetched, after);
    Finished finished;
    for (int v = 0; v < block.rows; ++v) {
      const int64_t begin = block.view(v).begin / kSplit, end = ceil_div(block.view(v).end, kSplit);
      finish_head<V>(args, Cache::kRotated, block.row(v), block.head(v), record(v, begin), end - begin, finished);
    }
  }
};

// Few rows: splits are tiles of their own, then a second phase of rows x kv heads combines them.
template <Vector V, class Cache>
struct AttentionSplits : AttentionBase<V, Cache> {
  using Base = AttentionBase<V, Cache>;
  static constexpr int64_t kMostRows = 8;
  static constexpr int64_t kMostShared = int64_t(16) << 20;  // bytes of records; larger calls use `Rows`

  static int32_t accepts(const infeng_problem* p) {
    return Base::accepts(p) && p->rows_max <= kMostRows && records_bytes(p) <= kMostShared;
  }

  static infeng_status workspace(const infeng_problem* p, infeng_workspace* out) {
    out->align = kLine;
    out->shared = records_bytes(p);
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
    const Records records(shape, (float*)worker->shared);
    int64_t begin = 0;
    for (int32_t i = 0; i < args.segment_count; ++i) {
      const infeng_kv_segment& s = shape.segment(i);
      const int64_t tiles = segment_tiles(shape, s, phase);
      const int64_t from = max_of(first, begin) - begin, to = min_of(last, begin + tiles) - begin;
      if (phase == 0) {
        run_splits(shape, s, from, to, *(SplitScratch*)worker->private_, records);
      } else {
        for (int64_t tile = from; tile < to; ++tile) combine(shape, s, tile, records);
      }
      begin += tiles;
    }
    return INFENG_OK;
  }

 private:
  // The records of a (row, head) are consecutive and begin with the first split of the row's segment.
  struct Records {
    float* base;
    int64_t floats, head_stride, row_stride;
    Records(const AttentionShape& shape, float* shared)
        : base(shared),
          floats(record_floats(shape.cache.head_dim)),
          head_stride(shape.most_splits() * floats),
          row_stride(shape.args.q.shape[1] * head_stride) {}
    float* at(int64_t row, int64_t head, int64_t split) const {
      return base + row * row_stride + head * head_stride + split * floats;
    }
  };

  static int64_t records_bytes(const infeng_problem* p) {
    return p->rows_max * p->heads * Base::splits(p) * record_floats(p->head_dim) * int64_t(sizeof(float));
  }

  static int64_t segment_tiles(const AttentionShape& shape, const infeng_kv_segment& s, int32_t phase) {
    const int64_t heads = shape.cache.kv_heads;
    return phase == 0 ? shape.splits(s) * shape.blocks(s) * heads : (s.row_end - s.row_begin) * heads;
  }

  // Runs tiles [from, to): blocks of rows vary fastest, then kv heads, so that splits are read in memory order. Queries
  // are prepared once if the scratch has room for all heads. The tile after the last is fetched ahead, because this
  // worker likely runs it too.
  static void run_splits(const AttentionShape& shape, const infeng_kv_segment& s, int64_t from, int64_t to,
                         SplitScratch& scratch, const Records& records) {
    const int64_t blocks = shape.blocks(s), each = blocks * shape.cache.kv_heads, all = shape.splits(s) * each;
    const int64_t rows = shape.block_rows(s), j0 = shape.first_split(s);
    const bool keeps = each * rows <= kVirtualRows;
    const auto block_of = [&](int64_t tile) {
      const int64_t index = tile % each;
      return shape.template block<V, Cache>(s, index / blocks, index % blocks, keeps ? int(index * rows) : 0, scratch);
    };
    for (int64_t tile = from; tile < to; ++tile) {
      const auto block = block_of(tile);
      const int64_t j = j0 + tile / each;
      if (!keeps || tile - from < each) block.prepare();
      block.run(
          j, j + 1, [&](int v, int64_t) { return records.at(block.row(v), block.head(v), j - j0); }, tile > from,
          tile + 1 < all ? block_of(tile + 1).slabs(j0 + (tile + 1) / each) : Slabs{});
    }
  }

  static void combine(const AttentionShape& shape, const infeng_kv_segment& s, int64_t tile, const Records& records) {
    const auto& args = shape.args;
    const int64_t row = s.row_begin + tile / shape.cache.kv_heads, kv_head = tile % shape.cache.kv_heads;
    const int64_t position = s.pos0 + (row - s.row_begin);
    const int64_t j0 = first_visible(args.window, position) / kSplit, j1 = ceil_div(position + 1, kSplit);
    Finished finished;
    for (int64_t head = kv_head * shape.shared; head < (kv_head + 1) * shape.shared; ++head)
      finish_head<V>(args, Cache::kRotated, row, head, records.at(row, head, j0 - shape.first_split(s)), j1 - j0,
                     finished);
  }
};

}  // namespace
}  // namespace infeng
#endif  // INFENG_OPS_ATTENTION_H
