// Sums over V of one split, by the factors of a block's virtual rows; attention.h has the formulas.
// SPDX-License-Identifier: Apache-2.0
#ifndef INFENG_OPS_ATTENTION_VALUES_H
#define INFENG_OPS_ATTENTION_VALUES_H

#include <infeng/ops/attention_block.h>
#include <infeng/ops/attention_shares.h>

namespace infeng {
namespace {

// The rows whose sums for one or more vectors of columns stay in registers. V that must be converted is widened once
// for all rows of a block, unless only one register block of rows needs it.
constexpr int kSumRows = 6;
template <Vector V>
constexpr int kCachedRows = V::kColumns > 1 ? 8 : kSumRows;

// Sources of V: the cache as it is, or a chunk widened to f32.
template <Vector V, class Values>
struct CachedValues {
  using Value = typename Values::Value;
  static constexpr int kPerValue = Values::kPerValue;
  static constexpr bool kWhole = false;                      // blocks of tokens are not contiguous
  static constexpr bool kPartial = kPerValue % kLanes != 0;  // the last vector of a row may be a part of one
  const Slab* slab;
  int step;  // values from row to row
  INFENG_INLINE const Value* at(unsigned t, int column) const {
    return slab[t / kLanes].template v<Value>(int(t % kLanes), kPerValue) + column / kPerValue;
  }
  static INFENG_INLINE typename V::F load(const Value* v) { return Values::value(v); }
  static INFENG_INLINE typename V::F load(const Value* v, int n) { return Values::value(v, n); }
};
template <Vector V>
struct WideValues {
  static constexpr int kPerValue = 1;
  static constexpr bool kWhole = true;
  static constexpr bool kPartial = false;
  const float* chunk;
  int begin, from, step;  // first token, first column, number of columns
  INFENG_INLINE const float* at(int t, int column) const { return chunk + (t - begin) * step + column - from; }
  static INFENG_INLINE typename V::F load(const float* v) { return V::load(v); }
};

// Adds V of a source to the records, in f32. Scaled: K has scales, which are fetched ahead with it.
template <Vector V, bool Scaled, class Source>
struct SplitColumns {
  using F = typename V::F;
  using Fetch = Ahead<V, Scaled>;

  const AttentionBlock& block;
  const Fetch& ahead;
  Source source;

  // Adds tokens [begin, end) to o of all rows. The rows of a register block share the tokens that all of them see; the
  // tokens at either end are added row by row, so that each row adds its tokens in ascending order.
  template <int Most>
  void add(int from, int count, int begin, int end) const {
    balanced_blocks<Most>(block.rows, [&](int v, auto size) {
      constexpr int M = size.value;
      const Range* seen = block.scratch.seen + v;
      Range common = {int(max_of(begin, seen[M - 1].begin)), int(min_of(end, seen[0].end))};
      if (common.begin >= common.end) common = {end, end};
      if (begin < common.begin) alone<M>(from, count, v, begin, common.begin);
      pass<M>(from, count, v, common.begin, common.end, v == 0 ? &ahead : nullptr);
      if (common.end < end) alone<M>(from, count, v, common.end, end);
    });
  }

 private:
  template <int M>
  INFENG_INLINE void alone(int from, int count, int v, int begin, int end) const {
    const Range* seen = block.scratch.seen + v;
    for (int m = 0; m < M; ++m)
      pass<1>(from, count, v + m, int(max_of(begin, seen[m].begin)), int(min_of(end, seen[m].end)), nullptr);
  }

  // A part of a vector, which few head sizes have, is added row by row.
  template <int M>
  INFENG_NOINLINE void pass(int from, int count, int v, int begin, int end, const Fetch* fetch) const {
    if (begin >= end) return;
    constexpr int C = M <= kSumRows ? V::kColumns : V::kColumns / 2;
    const int full = count / kLanes;
    for (int c = 0; c < full; c += C)
      dispatch<C>(full - c,
                  [&](auto now) { accumulate<M, now.value, false>(v, begin, end, from + c * kLanes, fetch); });
    if constexpr (Source::kPartial)
      for (int m = 0; count % kLanes && m < M; ++m)
        accumulate<1, 1, true>(v + m, begin, end, from + full * kLanes, m == 0 ? fetch : nullptr);
  }

  // Updates o[d .. d + 16 C) of virtual rows [v, v + M) in their records.
  template <int M, int C, bool Part>
  INFENG_NOINLINE void accumulate(int v, int begin, int end, int d, const Fetch* fetch) const {
    const float* p = block.scratch.s[v];
    float* o[M];
    F acc[M][C];
    INFENG_EACH (m, M) {
      o[m] = block.scratch.record[v + m] + kLanes + d;
      INFENG_EACH (c, C) acc[m][c] = V::load(o[m] + c * kLanes);
    }
    const auto pieces = fetch ? fetch->pieces(d, C) : typename Fetch::Pieces{};
    while (begin < end) {
      const int whole = Source::kWhole && !fetch ? end : (begin | (kLanes - 1)) + 1, stop = whole < end ? whole : end;
      pieces.fetch(int(unsigned(begin) / kLanes));
      const auto* values = source.at(begin, d);
      for (; begin < stop; ++begin, values += source.step) {
        F value[C];
        INFENG_EACH (c, C) {
          if constexpr (Part)
            value[c] = Source::load(values, block.dim - d);
          else
            value[c] = Source::load(values + c * (kLanes / Source::kPerValue));
        }
        INFENG_EACH (m, M) {
          const F factor = V::set(p[m * kScoreStride + begin]);
          INFENG_EACH (c, C) acc[m][c] = V::fma(factor, value[c], acc[m][c]);
        }
      }
    }
    INFENG_EACH (m, M)
      INFENG_EACH (c, C) V::store(o[m] + c * kLanes, acc[m][c]);
  }
};

// Values: how a cache format stores V (ops/attention_cache.h).
template <Vector V, class Values>
struct SplitValues {
  using Value = typename Values::Value;
  using Fetch = Ahead<V, Values::kScaled>;
  static constexpr bool kShares = requires { Values::kShareBits; };  // V is added in integers

  const AttentionBlock& block;
  const Slabs& now;
  const Fetch ahead;

  SplitValues(const AttentionBlock& rows, const Slabs& split, const Slabs& next)
      : block(rows), now(split), ahead(split, next, rows.cache.v_offset, rows.width / kLanes) {}

  // Adds V of the split to the records of all rows, and fetches K of the next split meanwhile.
  INFENG_NOINLINE void run() const {
    if constexpr (kShares)
      shares();
    else
      values();
    ahead.fetch_rest(now);
  }

 private:
  // Adds V in integers: all rows pass over a few columns, which stay in the L1 cache.
  void shares() const {
    if constexpr (requires { Values::takes_shares(block.rows); }) {
      if (Values::takes_shares(block.rows))
        return Values::add_shares(now, block.scratch, block.rows, block.width, ahead);
    }
    if (block.rows > kCachedRows<V>)
      share_columns<kSumRows>();
    else
      share_columns<kCachedRows<V>>();
  }

  template <int Most>
  void share_columns() const {
    constexpr int kMost = Most <= kSumRows ? V::kColumns : V::kColumns / 2;
    for (int d = 0; d < block.width; d += kMost * kLanes)
      dispatch<kMost>((block.width - d) / kLanes, [&](auto columns_now) {
        constexpr int C = columns_now.value;
        balanced_blocks<Most>(block.rows, [&](int v, auto size) {
          Shares<V, Values::kShareBits>::template add<size.value, C>(
              now, block.scratch, v, block.width, d, v == 0 ? ahead.pieces(d, C) : typename Fetch::Pieces{});
        });
      });
  }

  // Adds V in chunks of at most half of the L1 cache, f32 or in the cache's format, over which all rows pass.
  void values() const {
    if constexpr (Values::kConverted) {
      if (block.rows > kCachedRows<V>) return widened();
    }
    using Cached = CachedValues<V, Values>;
    const int step = int(ceil_div(block.dim, Values::kPerValue)), count = Cached::kPartial ? block.dim : block.width;
    by_blocks(step * int(sizeof(Value)), [&](int begin, int end) {
      SplitColumns<V, Values::kScaled, Cached>{block, ahead, Cached{now.slab, step}}.template add<kCachedRows<V>>(
          0, count, begin, end);
    });
  }

  void widened() const {
    using Wide = WideValues<V>;
    constexpr int kWidth = V::kColumns * kLanes;
    for (int d = 0; d < block.width; d += kWidth) {
      const int count = int(min_of(block.width - d, kWidth));
      by_blocks(count * int(sizeof(float)), [&](int begin, int end) {
        dispatch<V::kColumns>(count / kLanes, [&](auto c) { widen<c.value>(begin, end, d); });
        SplitColumns<V, Values::kScaled, Wide>{block, ahead, Wide{block.scratch.wide, begin, d, count}}
            .template add<kSumRows>(d, count, begin, end);
      });
    }
  }

  // Calls pass(begin, end) for as many tokens at a time as fit in kWideFloats, `bytes` each.
  template <class Pass>
  INFENG_INLINE void by_blocks(int bytes, const Pass& pass) const {
    const int step = int(max_of(kWideFloats * int(sizeof(float)) / bytes / kLanes, 1));
    for (int b = now.begin; b < now.end; b += step) pass(b * kLanes, int(min_of(b + step, now.end)) * kLanes);
  }

  // Widens C vectors of columns from d on of tokens [begin, end).
  template <int C>
  INFENG_NOINLINE void widen(int begin, int end, int d) const {
    constexpr int kStep = kLanes / Values::kPerValue;  // values of a vector
    const int dim = block.dim, row = int(ceil_div(dim, Values::kPerValue));
    float* target = block.scratch.wide;
    for (int b = begin / kLanes; b < end / kLanes; ++b) {
      const Value* v = now.slab[b].template v<Value>(0) + d / Values::kPerValue;
      if (d + C * kLanes <= dim) {
        for (int t = 0; t < kLanes; ++t, v += row, target += C * kLanes)
          INFENG_EACH (c, C) V::store(target + c * kLanes, Values::value(v + c * kStep));
      } else {
        for (int t = 0; t < kLanes; ++t, v += row, target += C * kLanes)
          INFENG_EACH (c, C) V::store(target + c * kLanes, Values::value(v + c * kStep, dim - d - c * kLanes));
      }
    }
  }
};

}  // namespace
}  // namespace infeng
#endif  // INFENG_OPS_ATTENTION_VALUES_H
