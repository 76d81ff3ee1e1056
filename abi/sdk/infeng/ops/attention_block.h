// A block of virtual rows of attention: what its rows are, and which positions and slabs they see. attention.h has the
// formulas. The code over a block is a template of what it reads, K (ops/attention_scores.h) or V
// (ops/attention_values.h), and not of the cache format, so that formats with the same K or V share its instances.
// SPDX-License-Identifier: Apache-2.0
#ifndef INFENG_OPS_ATTENTION_BLOCK_H
#define INFENG_OPS_ATTENTION_BLOCK_H

#include <infeng/ops/attention_fetch.h>

namespace infeng {
namespace {

constexpr int64_t first_visible(int64_t window, int64_t position) {
  return window > 0 && position >= window ? position - window + 1 : 0;
}

// Positions [begin, end) of a sequence that a virtual row sees.
struct View {
  int64_t begin;
  int64_t end;
};

// Virtual rows [from, from + rows) of one segment and kv head; virtual row v is row v / shared, head v % shared.
struct AttentionBlock {
  const infeng_attention_args& args;
  const infeng_kv_cache& cache;
  const infeng_kv_segment& segment;
  int64_t shared, kv_head, from;
  int rows, slot;  // number of virtual rows, and the place of their queries in the scratch
  int dim, width;  // of a head; rounded up to whole vectors
  SplitScratch& scratch;

  AttentionBlock(const infeng_attention_args& a, const infeng_kv_segment& s, int64_t shared_heads, int64_t head_index,
                 int64_t first, int count, int queries, SplitScratch& space)
      : args(a),
        cache(*a.cache),
        segment(s),
        shared(shared_heads),
        kv_head(head_index),
        from(first),
        rows(count),
        slot(queries),
        dim(a.cache->head_dim),
        width(int(round_up(dim, kLanes))),
        scratch(space) {}

  int64_t row(int v) const { return segment.row_begin + (from + v) / shared; }
  int64_t head(int v) const { return kv_head * shared + (from + v) % shared; }
  const float* query(int v) const { return row_of<float>(args.q, row(v)) + head(v) * args.q.strides[1]; }
  View view(int v) const {
    const int64_t position = segment.pos0 + (from + v) / shared;
    return {first_visible(args.window, position), position + 1};
  }
  int64_t first_split() const { return view(0).begin / kSplit; }
  int64_t last_split() const { return ceil_div(view(rows - 1).end, kSplit); }

  // The positions of split j that virtual row v sees; empty if begin >= end.
  Range visible(int v, int64_t j) const {
    const View w = view(v);
    return {int(max_of(w.begin - j * kSplit, 0)), int(min_of(w.end - j * kSplit, kSplit))};
  }
  Slabs slabs(int64_t j) const {
    Slabs s;
    s.begin = visible(0, j).begin / kLanes;
    s.end = int(ceil_div(visible(rows - 1, j).end, kLanes));
    for (int b = s.begin; b < s.end; ++b)
      s.slab[b] = slab_at(cache, segment.block_table[j * kSplitBlocks + b], kv_head);
    return s;
  }
};

}  // namespace
}  // namespace infeng
#endif  // INFENG_OPS_ATTENTION_BLOCK_H
