// V in integers: the factors r of a row become shares, bytes of the largest factor R, so that V of a split is summed up
// exactly and scaled once:
//   b[t] = min(rne(r[t] * (255 / R)), 255), 0 for tokens that the row does not see;  o[d] = float(sum of b[t] *
//   V[t][d]) * (R / 255)
// The sum is at most 256 * 255 * 127 < 2^24, which a float holds exactly.
// SPDX-License-Identifier: Apache-2.0
#ifndef INFENG_OPS_ATTENTION_SHARES_H
#define INFENG_OPS_ATTENTION_SHARES_H

#include <infeng/ops/attention_fetch.h>

namespace infeng {
namespace {

template <Vector V>
struct Shares {
  using F = typename V::F;
  using Share = typename V::Share;
  static_assert(sizeof(Share) * kVirtualRows * kSplit <= sizeof(SplitScratch::wide));

  // The shares of virtual row v, in memory in which other formats widen V.
  static INFENG_INLINE Share* row(SplitScratch& scratch, int v) { return (Share*)scratch.wide + v * kSplit; }

  // Factors of virtual row v become shares of the tokens of `blocks`.
  static INFENG_NOINLINE void divide(SplitScratch& scratch, int v, Range blocks) {
    const Range seen = scratch.seen[v];
    const bool none = seen.begin >= seen.end;
    const Range whole =
        none ? Range{blocks.begin, blocks.begin} : Range{seen.begin / kLanes * kLanes, int(round_up(seen.end, kLanes))};
    float* r = scratch.s[v];
    if (!none && (seen.begin > whole.begin || seen.end < whole.end)) hide_unseen<V>(r, whole, seen, kNothing);
    F most = V::zero(), other = V::zero();
    int t = whole.begin;
    for (; t + kLanes < whole.end; t += 2 * kLanes) {
      most = V::max(most, V::load(r + t));
      other = V::max(other, V::load(r + t + kLanes));
    }
    if (t < whole.end) most = V::max(most, V::load(r + t));
    const float largest = V::max_lanes(V::max(most, other));
    const F inverse = V::set(largest < 0x1p-100f ? 0.0f : 255.0f / largest);
    scratch.unit[v] = largest / 255.0f;
    Share* b = row(scratch, v);
    for (t = blocks.begin; t < whole.begin; t += kLanes) V::store_shares(b + t, V::iset(0));
    for (; t < whole.end; t += kLanes)
      V::store_shares(b + t, V::rne(V::min(V::mul(V::load(r + t), inverse), V::set(255.0f))));
    for (; t < blocks.end; t += kLanes) V::store_shares(b + t, V::iset(0));
  }

  // Writes C vectors of columns of o, from column d on, to the records of virtual rows [v, v + M).
  template <int M, int C, class Pieces>
  static INFENG_NOINLINE void add(const Slabs& now, SplitScratch& scratch, int v, int width, int d,
                                  const Pieces& pieces) {
    const int begin = int(max_of(now.begin, scratch.seen[v].begin / kLanes));
    const int end = int(min_of(now.end, ceil_div(scratch.seen[v + M - 1].end, kLanes)));
    const Share* b = row(scratch, v);
    typename V::I acc[M][C];
    INFENG_EACH (m, M)
      INFENG_EACH (c, C) acc[m][c] = V::iset(0);
    for (int i = begin; i < end; ++i) {
      pieces.fetch(i);
      V::template add_shares<M, C>(acc, now.slab[i].template v<int8_t>(0) + 4 * d, 4 * width, b + i * kLanes, kSplit);
    }
    INFENG_EACH (m, M) {
      const F unit = V::set(scratch.unit[v + m]);
      float* o = scratch.record[v + m] + kLanes + d;
      INFENG_EACH (c, C) V::store(o + c * kLanes, V::mul(V::to_float(acc[m][c]), unit));
    }
  }

 private:
  static constexpr Edge kNothing = edge_of(0.0f);
};

}  // namespace
}  // namespace infeng
#endif  // INFENG_OPS_ATTENTION_SHARES_H
