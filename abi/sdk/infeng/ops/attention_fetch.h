// Prefetching for attention. Slabs are scattered pieces of a few KB, which hardware prefetchers do not follow, so every
// line is requested. A core may drop requests beyond the number of misses that it can have in flight, so requests are
// spread evenly over the available time.
// SPDX-License-Identifier: Apache-2.0
#ifndef INFENG_OPS_ATTENTION_FETCH_H
#define INFENG_OPS_ATTENTION_FETCH_H

#include <infeng/ops/attention_cache.h>

namespace infeng {
namespace {

constexpr int kSplitBlocks = kSplit / kLanes;

// The blocks [begin, end) of a split's 16 that any virtual row of a block sees.
struct Slabs {
  Slab slab[kSplitBlocks];
  int begin = 0, end = 0;
};

// Fetches K of up to `count` blocks from `block` on, at once, with the scales of its tokens if it is `Scaled`.
template <Vector V, bool Scaled>
INFENG_INLINE void fetch_keys(const Slabs& s, int block, int count) {
  for (int b = block; b < s.end && b < block + count; ++b) {
    const char* k = s.slab[b].k<char>();
    for (int64_t at = 0; at < s.slab[b].cache->v_offset; at += kLine) V::prefetch(k + at);
    if constexpr (Scaled) V::prefetch(s.slab[b].k_scale());
  }
}

// Fetches K of the next split while V of this one is added, one piece for each vector of columns.
template <Vector V, bool Scaled>
struct Ahead {
  const Slabs& next;
  int shift;      // from a block of this split to one of the next
  int64_t bytes;  // of a block's K
  int64_t piece;  // of these bytes, in whole lines

  Ahead(const Slabs& now, const Slabs& then, int64_t k_bytes, int vectors)
      : next(then), shift(then.begin - now.begin), bytes(k_bytes), piece(round_up(ceil_div(k_bytes, vectors), kLine)) {}

  // The pieces of columns [column, column + 16 vectors), block by block of this split.
  struct Pieces {
    const Slabs* next;  // NULL: there is none
    int shift;
    int64_t from, to;
    bool has_scales;
    INFENG_INLINE void fetch(int block) const {
      if (!next || block + shift >= next->end) return;
      const Slab& slab = next->slab[block + shift];
      const char* k = slab.k<char>();
      for (int64_t at = from; at < to; at += kLine) V::prefetch(k + at);
      if (Scaled && has_scales) V::prefetch(slab.k_scale());
    }
  };
  INFENG_INLINE Pieces pieces(int column, int vectors) const {
    const int64_t from = column / kLanes * piece;
    return {&next, shift, from, min_of(from + vectors * piece, bytes), column == 0};
  }
  // Fetches K of the blocks of the next split without a counterpart in this one.
  INFENG_INLINE void fetch_rest(const Slabs& now) const {
    fetch_keys<V, Scaled>(next, next.begin + int(max_of(now.end - now.begin, 0)), kSplitBlocks);
  }
};

}  // namespace
}  // namespace infeng
#endif  // INFENG_OPS_ATTENTION_FETCH_H
