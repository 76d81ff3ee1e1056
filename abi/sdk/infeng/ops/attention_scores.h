// Scores of attention: the products of a block's queries with K of one split; attention.h has the formulas.
// SPDX-License-Identifier: Apache-2.0
#ifndef INFENG_OPS_ATTENTION_SCORES_H
#define INFENG_OPS_ATTENTION_SCORES_H

#include <infeng/ops/attention_block.h>

namespace infeng {
namespace {

// V of a slab, which is fetched while K is multiplied.
struct ValueBytes {
  int column;  // bytes of one column of a slab's V
  int line;    // bytes of V for each line of K
};

// Keys: how a cache format stores K (ops/attention_cache.h).
template <Vector V, class Keys>
struct SplitScores {
  using F = typename V::F;

  const AttentionBlock& block;
  const Slabs& now;
  ValueBytes bytes;

  // Computes the scores of all rows; calls done(v, count) for rows that are complete and still in the L1 cache.
  // `fetched`: K has been fetched already.
  template <class Done>
  void run(bool fetched, const Done& done) const {
    if constexpr (requires { Keys::takes_splits(block.rows, block.dim); }) {
      if (block.slot == 0 && Keys::takes_splits(block.rows, block.dim)) return score_split(fetched, done);
    }
    constexpr int P = Keys::kScoreBlocks;
    if (!fetched) fetch_keys<V, Keys::kScaled>(now, now.begin, P);
    balanced_blocks<Keys::kScoreRows>(block.rows, [&](int v, auto count) {
      constexpr int M = count.value;
      int b = now.begin;
      for (; b + P <= now.end; b += P) {
        if (v == 0 && !fetched) fetch_keys<V, Keys::kScaled>(now, b + P, P);
        score<M, P>(b, v);
      }
      for (; b < now.end; ++b) score<M, 1>(b, v);
      done(v, M);
    });
  }

 private:
  // The same for formats with their own implementation (ops/attention_tiles.h). Each block of tokens fetches its V, and
  // K of a later block unless that was fetched already.
  template <class Done>
  void score_split(bool fetched, const Done& done) const {
    if (!fetched) fetch_keys<V, Keys::kScaled>(now, now.begin, Keys::kTurnBlocks);
    const auto ahead = [&](int b) INFENG_INLINE_LAMBDA {
      if (!fetched) fetch_keys<V, Keys::kScaled>(now, b + Keys::kTurnBlocks, 1);
      const char* values = now.slab[b].template v<char>(0);
      for (int at = 0; at < block.dim * bytes.column; at += kLine) V::prefetch(values + at);
      V::prefetch(now.slab[b].v_scale());
    };
    Keys::score_split({now.slab, now.begin, now.end, block.rows, block.dim, block.args.scale}, block.scratch, ahead,
                      done);
  }

  // The first rows also fetch V of the same blocks of tokens, which is needed after the split's scores.
  template <int M, int P>
  INFENG_NOINLINE void score(int b, int v) const {
    SplitScratch& scratch = block.scratch;
    const Slab* slab = now.slab + b;
    F largest[M];
    INFENG_EACH (m, M) largest[m] = b == now.begin ? V::set(-__builtin_inff()) : V::load(scratch.largest[v + m]);
    const auto take = [&](int m, int p, F s) INFENG_INLINE_LAMBDA {
      V::store(scratch.s[v + m] + (b + p) * kLanes, s);
      largest[m] = V::max(largest[m], s);
    };
    const bool fetches = v == 0;
    const int line = bytes.line;
    const char* values[P];
    INFENG_EACH (p, P) {
      values[p] = slab[p].template v<char>(0);
      if (Keys::kScaled && fetches) V::prefetch(slab[p].v_scale());
    }
    const auto each = [&](int p, int l) INFENG_INLINE_LAMBDA {
      if (fetches) V::prefetch(values[p] + l * line);
    };
    Keys::template scores<M, P>(slab, block.dim, scratch, block.slot + v, block.args.scale, each, take);
    INFENG_EACH (m, M) V::store(scratch.largest[v + m], largest[m]);
  }
};

}  // namespace
}  // namespace infeng
#endif  // INFENG_OPS_ATTENTION_SCORES_H
