// V in integers: the factors r of a row become shares, bytes of the largest factor R, so that V of a split is summed up
// exactly and scaled once:
//   b[t] = min(rne(r[t] * (255 / R)), 255), 0 for tokens that the row does not see;  o[d] = float(sum of b[t] *
//   V[t][d]) * (R / 255)
// The sum is at most 256 * 255 * 127 < 2^24, which a float holds exactly.
// Scales of 4 bits have signs. Then R is the largest |r| and shares are in [-127, 127], with 127 in place of 255. V is
// read as nibbles q + 8, so sums start with -8 times the sum of b.
// SPDX-License-Identifier: Apache-2.0
#ifndef INFENG_OPS_ATTENTION_SHARES_H
#define INFENG_OPS_ATTENTION_SHARES_H

#include <infeng/ops/attention_fetch.h>

namespace infeng {
namespace {

// The type of a share of V of so many bits.
template <Vector V, int Bits>
struct ShareOf {
  using Type = typename V::Share;
};
template <Vector V>
struct ShareOf<V, 4> {
  using Type = int8_t;
};

template <Vector V, int Bits>
struct Shares {
  using F = typename V::F;
  using I = typename V::I;
  static constexpr bool kSigned = Bits == 4;
  static constexpr float kMost = kSigned ? 127.0f : 255.0f;
  using Share = typename ShareOf<V, Bits>::Type;
  // Bytes of all shares, at the end of the memory in which other formats widen V; products of tiles are at its begin.
  static constexpr int kBytes = int(sizeof(Share)) * kVirtualRows * kSplit;
  static_assert(kBytes <= int(sizeof(SplitScratch::wide)));

  // The shares of virtual row v.
  static INFENG_INLINE Share* row(SplitScratch& scratch, int v) {
    return (Share*)((char*)scratch.wide + (sizeof scratch.wide - kBytes)) + v * kSplit;
  }

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
      most = V::max(most, magnitude(V::load(r + t)));
      other = V::max(other, magnitude(V::load(r + t + kLanes)));
    }
    if (t < whole.end) most = V::max(most, magnitude(V::load(r + t)));
    const float largest = V::max_lanes(V::max(most, other));
    const F inverse = V::set(largest < 0x1p-100f ? 0.0f : kMost / largest);
    scratch.unit[v] = largest / kMost;
    Share* b = row(scratch, v);
    I sum = V::iset(0);
    for (t = blocks.begin; t < whole.begin; t += kLanes) store(b + t, V::iset(0));
    for (; t < whole.end; t += kLanes) {
      const I share = nearest(V::mul(V::load(r + t), inverse));
      if constexpr (kSigned) sum = V::iadd(sum, share);
      store(b + t, share);
    }
    for (; t < blocks.end; t += kLanes) store(b + t, V::iset(0));
    if constexpr (kSigned) scratch.start[v] = -8 * V::isum(sum);
  }

  // Writes C vectors of columns of o, from column d on, to the records of virtual rows [v, v + M).
  template <int M, int C, class Pieces>
  static INFENG_NOINLINE void add(const Slabs& now, SplitScratch& scratch, int v, int width, int d,
                                  const Pieces& pieces) {
    const int begin = int(max_of(now.begin, scratch.seen[v].begin / kLanes));
    const int end = int(min_of(now.end, ceil_div(scratch.seen[v + M - 1].end, kLanes)));
    const Share* b = row(scratch, v);
    I acc[M][C];
    INFENG_EACH (m, M)
      INFENG_EACH (c, C) acc[m][c] = V::iset(kSigned ? scratch.start[v + m] : 0);
    for (int i = begin; i < end; ++i) {
      pieces.fetch(i);
      const int8_t* lines = now.slab[i].template v<int8_t>(0);
      if constexpr (kSigned)
        V::template add_nibbles<M, C>(acc, (const uint8_t*)lines + 2 * d, 2 * width, b + i * kLanes, kSplit);
      else
        V::template add_shares<M, C>(acc, lines + 4 * d, 4 * width, b + i * kLanes, kSplit);
    }
    INFENG_EACH (m, M) {
      const F unit = V::set(scratch.unit[v + m]);
      float* o = scratch.record[v + m] + kLanes + d;
      INFENG_EACH (c, C) V::store(o + c * kLanes, V::mul(V::to_float(acc[m][c]), unit));
    }
  }

 private:
  static constexpr Edge kNothing = edge_of(0.0f);

  static INFENG_INLINE F magnitude(F r) {
    if constexpr (kSigned) return V::abs(r);
    return r;
  }
  static INFENG_INLINE I nearest(F share) {
    share = V::min(share, V::set(kMost));
    if constexpr (kSigned) share = V::max(share, V::set(-kMost));
    return V::rne(share);
  }
  static INFENG_INLINE void store(Share* to, I shares) {
    if constexpr (kSigned)
      V::store_i8(to, shares);
    else
      V::store_shares(to, shares);
  }
};

}  // namespace
}  // namespace infeng
#endif  // INFENG_OPS_ATTENTION_SHARES_H
