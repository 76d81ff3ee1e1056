// The scores of a split become the factors of V: p, or p times the scale of a token's V; attention.h has the formulas.
// SPDX-License-Identifier: Apache-2.0
#ifndef INFENG_OPS_ATTENTION_SOFTMAX_H
#define INFENG_OPS_ATTENTION_SOFTMAX_H

#include <infeng/ops/attention_block.h>
#include <infeng/ops/attention_shares.h>
#include <infeng/ops/exp.h>

namespace infeng {
namespace {

// Scaled: V has a scale for each token.
template <Vector V, bool Scaled>
struct SplitFactors {
  using F = typename V::F;
  static constexpr int kAbreast = V::kColumns > 1 ? 4 : 2;  // exponentials computed at the same time

  const AttentionBlock& block;
  const Slabs& now;
  int share_bits;  // of V that is added in integers (ops/attention_shares.h), else 0

  // Scores of rows [first, first + count) become the factors of V.
  void operator()(int first, int count) const {
    SplitScratch& scratch = block.scratch;
    const int last = first + count;
    if (block.args.softcap > 0.0f) cap_scores(first, last);
    if (Scaled && first == 0)
      for (int b = now.begin; b < now.end; ++b) V::store(scratch.v_scale + b * kLanes, V::load(now.slab[b].v_scale()));
    for (int v = first; v < last;) {
      const Range seen = scratch.seen[v];
      int same = 1;  // rows that see the same positions
      while (same < kAbreast && v + same < last && scratch.seen[v + same].begin == seen.begin &&
             scratch.seen[v + same].end == seen.end)
        ++same;
      for (int n = 0; n < same; ++n) fetch_query(block.from + v + n - block.rows);
      if (seen.begin < seen.end) dispatch<kAbreast>(same, [&](auto n) { softmax<n.value>(v); });
      v += same;
    }
    if constexpr (Scaled)
      for (int v = first; share_bits && v < last; ++v) {
        const Range blocks = {now.begin * kLanes, now.end * kLanes};
        share_bits == 8 ? Shares<V, 8>::divide(scratch, v, blocks) : Shares<V, 4>::divide(scratch, v, blocks);
      }
  }

 private:
  // Fetches the query of a virtual row of the preceding block, which is next, because the last rows come first.
  void fetch_query(int64_t virtual_row) const {
    if (virtual_row < 0) return;
    const char* q = (const char*)block.query(int(virtual_row - block.from));
    for (int at = 0; at < block.dim * int(sizeof(float)); at += kLine) V::prefetch(q + at);
  }

  INFENG_NOINLINE void cap_scores(int first, int last) const {
    SplitScratch& scratch = block.scratch;
    for (int v = first; v < last; ++v) {
      F largest = V::set(-__builtin_inff());
      for (int t = now.begin * kLanes; t < now.end * kLanes; t += kLanes) {
        const F s = softcap<V>(V::load(scratch.s[v] + t), block.args.softcap);
        V::store(scratch.s[v] + t, s);
        largest = V::max(largest, s);
      }
      V::store(scratch.largest[v], largest);
    }
  }

  bool sees_all(Range seen) const { return seen.begin <= now.begin * kLanes && seen.end >= now.end * kLanes; }

  // Masks the scores of row v that it does not see in `blocks` and returns the largest score of each lane.
  F mask(int v, Range blocks) const {
    static constexpr Edge kLeast = edge_of(-__builtin_inff());
    float* s = block.scratch.s[v];
    hide_unseen<V>(s, blocks, block.scratch.seen[v], kLeast);
    F largest = V::load(s + blocks.begin), other = V::load(s + blocks.end - kLanes);
    int t = blocks.begin;
    for (; t + kLanes < blocks.end; t += 2 * kLanes) {
      largest = V::max(largest, V::load(s + t));
      other = V::max(other, V::load(s + t + kLanes));
    }
    return V::max(largest, other);
  }

  // Scores of rows [v, v + N), which see the same positions, become the factors of V; the records get m, l and o = +0
  // (which shares do not read). Two rows at once hide each other's latencies.
  template <int N>
  INFENG_NOINLINE void softmax(int v) const {
    SplitScratch& scratch = block.scratch;
    const Range seen = scratch.seen[v];
    const Range range = {seen.begin / kLanes * kLanes, int(round_up(seen.end, kLanes))};
    const bool all = sees_all(seen);
    float* s = scratch.s[v];
    F l[N], m[N];
    INFENG_EACH (n, N) {
      l[n] = V::zero();
      const float largest = V::max_lanes(all ? V::load(scratch.largest[v + n]) : mask(v + n, range));
      scratch.record[v + n][0] = largest;
      m[n] = V::set(largest);
    }
    constexpr int kBlocks = kAbreast / N;
    int t = range.begin;
    for (; t + kBlocks * kLanes <= range.end; t += kBlocks * kLanes) exponentials<N, kBlocks>(s + t, t, m, l);
    for (; t < range.end; t += kLanes) exponentials<N, 1>(s + t, t, m, l);
    INFENG_EACH (n, N) {
      float* record = scratch.record[v + n];
      record[1] = V::tree(l[n]);
      if (!share_bits)
        for (int d = 0; d < block.width; d += kLanes) V::store(record + kLanes + d, V::zero());
    }
  }

  // Scores of B blocks of tokens from token t on in N rows; l adds up block by block.
  template <int N, int B>
  INFENG_INLINE void exponentials(float* s, int t, const F (&m)[N], F (&l)[N]) const {
    using Many = Abreast<V, N * B>;
    const auto at = [&](int i) INFENG_INLINE_LAMBDA { return s + i % N * kScoreStride + i / N * kLanes; };
    const auto p =
        exp_of_negative<Many>(Many::each([&](int i) INFENG_INLINE_LAMBDA { return V::sub(V::load(at(i)), m[i % N]); }));
    INFENG_EACH (i, N * B) {
      l[i % N] = V::add(l[i % N], p.of[i]);
      if constexpr (Scaled)
        V::store(at(i), V::mul(p.of[i], V::load(block.scratch.v_scale + t + i / N * kLanes)));
      else
        V::store(at(i), p.of[i]);
    }
  }
};

}  // namespace
}  // namespace infeng
#endif  // INFENG_OPS_ATTENTION_SOFTMAX_H
