// Splits of attention for a block of virtual rows; attention.h has the formulas.
// SPDX-License-Identifier: Apache-2.0
#ifndef INFENG_OPS_ATTENTION_SPLIT_H
#define INFENG_OPS_ATTENTION_SPLIT_H

#include <infeng/ops/attention_scores.h>
#include <infeng/ops/attention_softmax.h>
#include <infeng/ops/attention_values.h>

namespace infeng {
namespace {

template <Vector V, class Cache>
struct SplitBlock : AttentionBlock {
  using AttentionBlock::AttentionBlock;

  // Prepares the queries; called once before `run`.
  INFENG_NOINLINE void prepare() const {
    for (int v = 0; v < rows; ++v) Cache::prepare(query(v), dim, scratch, slot + v);
  }

  // Computes splits [first, last): writes record(v, j) of each virtual row v that sees positions of split j. Fetches K
  // of the split after them, if any; `fetched`: K of `first` has been fetched already.
  template <class Record>
  void run(int64_t first, int64_t last, const Record& record, bool fetched, const Slabs& after) const {
    Slabs now = slabs(first), next;
    for (int64_t j = first; j < last; ++j, now = next, fetched = true) {
      next = j + 1 < last ? slabs(j + 1) : after;
      for (int v = 0; v < rows; ++v) {
        scratch.seen[v] = visible(v, j);
        scratch.record[v] = record(v, j);
      }
      run_split(now, next, fetched);
    }
  }

 private:
  using Keys = typename Cache::Keys;
  using Values = typename Cache::Values;

  INFENG_NOINLINE void run_split(const Slabs& now, const Slabs& next, bool fetched) const {
    int share_bits = 0;
    if constexpr (SplitValues<V, Values>::kShares) share_bits = Values::kShareBits;
    const SplitFactors<V, Values::kScaled> factors{*this, now, share_bits};
    const SplitScores<V, Keys> scores{*this, now, {Values::kBytes, Keys::kEach * Values::kBytes}};
    scores.run(fetched, factors);
    SplitValues<V, Values>(*this, now, next).run();
  }
};

}  // namespace
}  // namespace infeng
#endif  // INFENG_OPS_ATTENTION_SPLIT_H
