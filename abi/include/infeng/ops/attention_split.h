// Splits of attention for a block of virtual rows; attention.h has the formulas.
// SPDX-License-Identifier: Apache-2.0
#ifndef INFENG_OPS_ATTENTION_SPLIT_H
#define INFENG_OPS_ATTENTION_SPLIT_H

#include <infeng/ops/attention_shares.h>
#include <infeng/ops/exp.h>

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
template <Vector V, class Cache>
struct SplitBlock {
  using F = typename V::F;
  using Value = typename Cache::Value;
  using Fetch = Ahead<V, Cache>;
  // The rows whose sums for one or more vectors of columns stay in registers. V that must be converted is widened once
  // for all rows of the block, unless only one register block of rows needs it.
  static constexpr int kRows = 6, kCachedRows = V::kColumns > 1 ? 8 : kRows;
  static constexpr int kAbreast = V::kColumns > 1 ? 4 : 2;          // exponentials computed at the same time
  static constexpr bool kShares = requires { Cache::kShareBits; };  // V is added in integers

  const infeng_attention_args& args;
  const infeng_kv_cache& cache;
  const infeng_kv_segment& segment;
  int64_t shared, kv_head, from;
  int rows, slot;  // number of virtual rows, and the place of their queries in the scratch
  int dim, width;  // of a head; rounded up to whole vectors
  SplitScratch& scratch;

  SplitBlock(const infeng_attention_args& a, const infeng_kv_segment& s, int64_t shared_heads, int64_t head_index,
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

  // Prepares the queries; called once before `run`.
  void prepare() const {
    for (int v = 0; v < rows; ++v)
      Cache::prepare(row_of<float>(args.q, row(v)) + head(v) * args.q.strides[1], dim, scratch, slot + v);
  }

  int64_t row(int v) const { return segment.row_begin + (from + v) / shared; }
  int64_t head(int v) const { return kv_head * shared + (from + v) % shared; }
  View view(int v) const {
    const int64_t position = segment.pos0 + (from + v) / shared;
    return {first_visible(args.window, position), position + 1};
  }
  int64_t first_split() const { return view(0).begin / kSplit; }
  int64_t last_split() const { return ceil_div(view(rows - 1).end, kSplit); }

  Slabs slabs(int64_t j) const {
    Slabs s;
    s.begin = visible(0, j).begin / kLanes;
    s.end = int(ceil_div(visible(rows - 1, j).end, kLanes));
    for (int b = s.begin; b < s.end; ++b)
      s.slab[b] = slab_at(cache, segment.block_table[j * kSplitBlocks + b], kv_head);
    return s;
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
      scores(now, fetched, [&](int v, int count) { factors(now, v, v + count); });
      if constexpr (kShares)
        shares(now, next);
      else
        values(now, next);
    }
  }

 private:
  // The positions of split j that virtual row v sees; empty if begin >= end.
  Range visible(int v, int64_t j) const {
    const View w = view(v);
    return {int(max_of(w.begin - j * kSplit, 0)), int(min_of(w.end - j * kSplit, kSplit))};
  }

  // Computes the scores of all rows; calls done(v, count) for rows that are complete and still in the L1 cache.
  template <class Done>
  void scores(const Slabs& now, bool fetched, const Done& done) const {
    if constexpr (requires { Cache::takes_splits(rows, dim); }) {
      if (slot == 0 && Cache::takes_splits(rows, dim)) return score_split(now, fetched, done);
    }
    constexpr int P = Cache::kScoreBlocks;
    if (!fetched) fetch_keys<V, Cache>(now, now.begin, P);
    balanced_blocks<Cache::kScoreRows>(rows, [&](int v, auto count) {
      constexpr int M = count.value;
      int b = now.begin;
      for (; b + P <= now.end; b += P) {
        if (v == 0 && !fetched) fetch_keys<V, Cache>(now, b + P, P);
        score<M, P>(now, b, v);
      }
      for (; b < now.end; ++b) score<M, 1>(now, b, v);
      done(v, M);
    });
  }

  // The same for formats with their own implementation (ops/attention_tiles.h). Each block fetches its V, and K of a
  // later block unless that was fetched already.
  template <class Done>
  void score_split(const Slabs& now, bool fetched, const Done& done) const {
    if (!fetched) fetch_keys<V, Cache>(now, now.begin, Cache::kTurnBlocks);
    const auto ahead = [&](int b) INFENG_INLINE_LAMBDA {
      if (!fetched) fetch_keys<V, Cache>(now, b + Cache::kTurnBlocks, 1);
      const char* values = now.slab[b].template v<char>(0);
      for (int at = 0; at < dim * Cache::kBytes; at += kLine) V::prefetch(values + at);
      V::prefetch(now.slab[b].v_scale());
    };
    Cache::score_split({now.slab, now.begin, now.end, rows, dim, args.scale}, scratch, ahead, done);
  }

  // The first rows also fetch V of the same blocks, which is needed after the split's scores.
  template <int M, int P>
  INFENG_NOINLINE void score(const Slabs& now, int b, int v) const {
    const Slab* slab = now.slab + b;
    F largest[M];
    INFENG_EACH (m, M) largest[m] = b == now.begin ? V::set(-__builtin_inff()) : V::load(scratch.largest[v + m]);
    const auto take = [&](int m, int p, F s) INFENG_INLINE_LAMBDA {
      V::store(scratch.s[v + m] + (b + p) * kLanes, s);
      largest[m] = V::max(largest[m], s);
    };
    if (v == 0) {
      const char* values[P];
      INFENG_EACH (p, P) {
        values[p] = slab[p].template v<char>(0);
        if constexpr (Cache::kScaled) V::prefetch(slab[p].v_scale());
      }
      Cache::template scores<M, P>(
          slab, dim, scratch, slot + v, args.scale,
          [&](int l) INFENG_INLINE_LAMBDA {
            INFENG_EACH (p, P) V::prefetch(values[p] + l * Cache::kLineBytes);
          },
          take);
    } else {
      Cache::template scores<M, P>(slab, dim, scratch, slot + v, args.scale, Nothing{}, take);
    }
    INFENG_EACH (m, M) V::store(scratch.largest[v + m], largest[m]);
  }

  // Fetches the query of a virtual row of the preceding block, which is next, because the last rows come first.
  void fetch_query(int64_t virtual_row) const {
    if (virtual_row < 0) return;
    const int64_t row = segment.row_begin + virtual_row / shared, head = kv_head * shared + virtual_row % shared;
    const char* q = (const char*)(row_of<float>(args.q, row) + head * args.q.strides[1]);
    for (int at = 0; at < dim * int(sizeof(float)); at += kLine) V::prefetch(q + at);
  }

  // Scores of rows [first, last) become the factors of V.
  void factors(const Slabs& now, int first, int last) const {
    if (args.softcap > 0.0f) cap_scores(now, first, last);
    if (Cache::kScaled && first == 0)
      for (int b = now.begin; b < now.end; ++b) V::store(scratch.v_scale + b * kLanes, V::load(now.slab[b].v_scale()));
    for (int v = first; v < last;) {
      const Range seen = scratch.seen[v];
      int count = 1;
      while (count < kAbreast && v + count < last && scratch.seen[v + count].begin == seen.begin &&
             scratch.seen[v + count].end == seen.end)
        ++count;
      for (int n = 0; n < count; ++n) fetch_query(from + v + n - rows);
      if (seen.begin < seen.end) dispatch<kAbreast>(count, [&](auto n) { softmax<n.value>(v, now); });
      v += count;
    }
    if constexpr (kShares)
      for (int v = first; v < last; ++v)
        Shares<V, Cache::kShareBits>::divide(scratch, v, {now.begin * kLanes, now.end * kLanes});
  }

  INFENG_NOINLINE void cap_scores(const Slabs& now, int first, int last) const {
    for (int v = first; v < last; ++v) {
      F largest = V::set(-__builtin_inff());
      for (int t = now.begin * kLanes; t < now.end * kLanes; t += kLanes) {
        const F s = softcap<V>(V::load(scratch.s[v] + t), args.softcap);
        V::store(scratch.s[v] + t, s);
        largest = V::max(largest, s);
      }
      V::store(scratch.largest[v], largest);
    }
  }

  bool sees_all(int v, const Slabs& now) const {
    return scratch.seen[v].begin <= now.begin * kLanes && scratch.seen[v].end >= now.end * kLanes;
  }

  // Masks the scores of row v that it does not see in `blocks` and returns the largest score of each lane.
  F mask(int v, Range blocks) const {
    static constexpr Edge kLeast = edge_of(-__builtin_inff());
    float* s = scratch.s[v];
    hide_unseen<V>(s, blocks, scratch.seen[v], kLeast);
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
  INFENG_NOINLINE void softmax(int v, const Slabs& now) const {
    const Range seen = scratch.seen[v];
    const Range range = {seen.begin / kLanes * kLanes, int(round_up(seen.end, kLanes))};
    const bool all = sees_all(v, now);
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
      if constexpr (!kShares)
        for (int d = 0; d < width; d += kLanes) V::store(record + kLanes + d, V::zero());
    }
  }

  // Scores of B blocks from token t on in N rows; l adds up block by block.
  template <int N, int B>
  INFENG_INLINE void exponentials(float* s, int t, const F (&m)[N], F (&l)[N]) const {
    using Many = Abreast<V, N * B>;
    const auto at = [&](int i) INFENG_INLINE_LAMBDA { return s + i % N * kScoreStride + i / N * kLanes; };
    const auto p =
        exp_of_negative<Many>(Many::each([&](int i) INFENG_INLINE_LAMBDA { return V::sub(V::load(at(i)), m[i % N]); }));
    INFENG_EACH (i, N * B) {
      l[i % N] = V::add(l[i % N], p.of[i]);
      if constexpr (Cache::kScaled)
        V::store(at(i), V::mul(p.of[i], V::load(scratch.v_scale + t + i / N * kLanes)));
      else
        V::store(at(i), p.of[i]);
    }
  }

  // Sources of V: the cache as it is, or a chunk widened to f32.
  struct Cached {
    static constexpr int kPerValue = Cache::kPerValue;
    static constexpr bool kWhole = false;  // blocks are not contiguous
    const Slab* slab;
    int step;  // values from row to row
    INFENG_INLINE const Value* at(unsigned t, int column) const {
      return slab[t / kLanes].template v<Value>(int(t % kLanes), kPerValue) + column / kPerValue;
    }
    static INFENG_INLINE F load(const Value* v) { return Cache::value(v); }
    static INFENG_INLINE F load(const Value* v, int n) { return Cache::value(v, n); }
  };
  struct Wide {
    static constexpr int kPerValue = 1;
    static constexpr bool kWhole = true;
    const float* chunk;
    int begin, from, step;  // first token, first column, number of columns
    INFENG_INLINE const float* at(int t, int column) const { return chunk + (t - begin) * step + column - from; }
    static INFENG_INLINE F load(const float* v) { return V::load(v); }
    static INFENG_INLINE F load(const float* v, int n) { return V::load(v, n); }
  };

  // Adds V in integers: all rows pass over a few columns, which stay in the L1 cache.
  void shares(const Slabs& now, const Slabs& next) const {
    const Fetch ahead(now, next, cache.v_offset, width / kLanes);
    if constexpr (requires { Cache::takes_shares(rows); }) {
      if (Cache::takes_shares(rows)) {
        Cache::add_shares(now, scratch, rows, width, ahead);
        return ahead.fetch_rest(now);
      }
    }
    if (rows > kCachedRows)
      share_columns<kRows>(now, ahead);
    else
      share_columns<kCachedRows>(now, ahead);
    ahead.fetch_rest(now);
  }

  template <int Most>
  void share_columns(const Slabs& now, const Fetch& ahead) const {
    constexpr int kMost = Most <= kRows ? V::kColumns : V::kColumns / 2;
    for (int d = 0; d < width; d += kMost * kLanes)
      dispatch<kMost>((width - d) / kLanes, [&](auto columns_now) {
        constexpr int C = columns_now.value;
        balanced_blocks<Most>(rows, [&](int v, auto size) {
          Shares<V, Cache::kShareBits>::template add<size.value, C>(
              now, scratch, v, width, d, v == 0 ? ahead.pieces(d, C) : typename Fetch::Pieces{});
        });
      });
  }

  // Adds V in chunks of at most half of the L1 cache, f32 or in the cache's format, over which all rows pass.
  void values(const Slabs& now, const Slabs& next) const {
    const Fetch ahead(now, next, cache.v_offset, width / kLanes);
    if (Cache::kConverted && rows > kCachedRows) {
      constexpr int kWidth = V::kColumns * kLanes;
      for (int d = 0; d < width; d += kWidth) {
        const int count = int(min_of(width - d, kWidth));
        by_blocks(now, count * int(sizeof(float)), [&](int begin, int end) {
          dispatch<V::kColumns>(count / kLanes, [&](auto c) { widen<c.value>(now, begin, end, d); });
          columns<kRows>(Wide{scratch.wide, begin, d, count}, d, count, begin, end, ahead);
        });
      }
    } else {
      const int step = int(ceil_div(dim, Cache::kPerValue));
      by_blocks(now, step * int(sizeof(Value)),
                [&](int begin, int end) { columns<kCachedRows>(Cached{now.slab, step}, 0, dim, begin, end, ahead); });
    }
    ahead.fetch_rest(now);
  }

  // Calls pass(begin, end) for as many tokens at a time as fit in kWideFloats, `bytes` each.
  template <class Pass>
  INFENG_INLINE void by_blocks(const Slabs& now, int bytes, const Pass& pass) const {
    const int step = int(max_of(kWideFloats * int(sizeof(float)) / bytes / kLanes, 1));
    for (int b = now.begin; b < now.end; b += step) pass(b * kLanes, int(min_of(b + step, now.end)) * kLanes);
  }

  // Widens C vectors of columns from d on of tokens [begin, end).
  template <int C>
  INFENG_NOINLINE void widen(const Slabs& now, int begin, int end, int d) const {
    constexpr int kStep = kLanes / Cache::kPerValue;  // values of a vector
    const int row = int(ceil_div(dim, Cache::kPerValue));
    float* target = scratch.wide;
    for (int b = begin / kLanes; b < end / kLanes; ++b) {
      const Value* v = now.slab[b].template v<Value>(0) + d / Cache::kPerValue;
      if (d + C * kLanes <= dim) {
        for (int t = 0; t < kLanes; ++t, v += row, target += C * kLanes)
          INFENG_EACH (c, C) V::store(target + c * kLanes, Cache::value(v + c * kStep));
      } else {
        for (int t = 0; t < kLanes; ++t, v += row, target += C * kLanes)
          INFENG_EACH (c, C) V::store(target + c * kLanes, Cache::value(v + c * kStep, dim - d - c * kLanes));
      }
    }
  }

  // Adds tokens [begin, end) to o of all rows. The rows of a register block share the tokens that all of them see; the
  // tokens at either end are added row by row, so that each row adds its tokens in ascending order.
  template <int Most, class Source>
  void columns(const Source& source, int from, int count, int begin, int end, const Fetch& ahead) const {
    balanced_blocks<Most>(rows, [&](int v, auto size) {
      constexpr int M = size.value;
      const Range* seen = scratch.seen + v;
      Range common = {int(max_of(begin, seen[M - 1].begin)), int(min_of(end, seen[0].end))};
      if (common.begin >= common.end) common = {end, end};
      const auto alone = [&](int from_token, int to) {
        for (int m = 0; m < M; ++m)
          pass<1>(source, from, count, v + m, int(max_of(from_token, seen[m].begin)), int(min_of(to, seen[m].end)),
                  nullptr);
      };
      if (begin < common.begin) alone(begin, common.begin);
      pass<M>(source, from, count, v, common.begin, common.end, v == 0 ? &ahead : nullptr);
      if (common.end < end) alone(common.end, end);
    });
  }

  template <int M, class Source>
  void pass(const Source& source, int from, int count, int v, int begin, int end, const Fetch* ahead) const {
    if (begin >= end) return;
    constexpr int C = M <= kRows ? V::kColumns : V::kColumns / 2;
    const int full = count / kLanes;
    for (int c = 0; c < full; c += C)
      dispatch<C>(full - c,
                  [&](auto now) { accumulate<M, now.value, false>(source, v, begin, end, from + c * kLanes, ahead); });
    if (count % kLanes) accumulate<M, 1, true>(source, v, begin, end, from + full * kLanes, ahead);
  }

  // Updates o[d .. d + 16 C) of virtual rows [v, v + M) in their records.
  template <int M, int C, bool Tail, class Source>
  INFENG_NOINLINE void accumulate(const Source& source, int v, int begin, int end, int d, const Fetch* ahead) const {
    const float* p = scratch.s[v];
    float* o[M];
    F acc[M][C];
    INFENG_EACH (m, M) {
      o[m] = scratch.record[v + m] + kLanes + d;
      INFENG_EACH (c, C) acc[m][c] = V::load(o[m] + c * kLanes);
    }
    const auto pieces = ahead ? ahead->pieces(d, C) : typename Fetch::Pieces{};
    while (begin < end) {
      const int whole = Source::kWhole && !ahead ? end : (begin | (kLanes - 1)) + 1, stop = whole < end ? whole : end;
      pieces.fetch(int(unsigned(begin) / kLanes));
      const auto* values = source.at(begin, d);
      for (; begin < stop; ++begin, values += source.step) {
        F value[C];
        INFENG_EACH (c, C)
          value[c] = Tail ? source.load(values, dim - d) : source.load(values + c * (kLanes / Source::kPerValue));
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

}  // namespace
}  // namespace infeng
#endif  // INFENG_OPS_ATTENTION_SPLIT_H
