// Scores of attention over int8 keys with matrix tiles (simd/tiles.h), for blocks of many virtual rows. The numbers
// equal those of IntKeys<V, 8>:
//   acc = -128 * sum of q + sum over d of q[d] * (K[t][d] + 128)     exact;  s = float(acc) * ((qs * ks[t]) * scale)
// The rest of attention is shared with the vector kernels: of most formats the contract adds p * V token by token in
// f32, which tiles cannot do. Formats whose V is added in integers add it with tiles too (TileLines).
//
// K of a block of 16 tokens, [head_dim / 4][16 tokens][4] u8, forms B tiles in the cache's layout: one per step of 64
// columns of the head. The quantized queries of up to 16 virtual rows form A tiles in scratch, and C tiles start with
// the first term. A turn multiplies K of a few blocks by one tile of rows. While its products become scores, the
// products of the next turn are computed, interleaved with the scores of some rows.
// SPDX-License-Identifier: Apache-2.0
#ifndef INFENG_OPS_ATTENTION_TILES_H
#define INFENG_OPS_ATTENTION_TILES_H

#include <infeng/ops/attention.h>
#include <infeng/simd/tiles.h>

namespace infeng {
namespace {

template <Vector V, class T>
  requires Tiles<T, V>
struct TileKeys : IntKeys<V, 8> {
  using F = typename V::F;
  static constexpr int kLeastRows = 9;  // of a block; a single decode row has fewer heads and uses vectors
  static constexpr int kMostSteps = 4;  // of a head, one tile of queries each
  static constexpr int kTurnBlocks = 4;

  // Whether this code computes the scores of a whole split instead of `scores`.
  static INFENG_INLINE bool takes_splits(int rows, int dim) { return rows >= kLeastRows && dim <= kMostSteps * kGroup; }

  // Blocks [begin, end) of a split's, for virtual rows [0, rows).
  struct Split {
    const Slab* slab;
    int begin, end;
    int rows, dim;
    float scale;
  };

  // Writes scores to scratch.s and the largest of each lane to scratch.largest. Calls ahead(b) for each block,
  // ascending, and done(v, count) for virtual rows that are complete.
  template <class Ahead, class Done>
  static void score_split(const Split& split, SplitScratch& scratch, const Ahead& ahead, const Done& done) {
    const Job job(split, scratch);
    for (int v = 0; v < job.tiles * job.height; ++v) {
      const int32_t zero = v < split.rows ? -128 * scratch.qsum[v] : 0;
      for (int i = 0; i < kLanes; ++i) job.space->zero[v][i] = zero;
    }
    for (int v = 0; v < split.rows; ++v) V::store(scratch.largest[v], V::set(-__builtin_inff()));
    T::configure(job.shapes());
    dispatch<kMostSteps>(job.steps, [&](auto steps) { turns<steps.value>(job, ahead, done); });
    T::release();
  }

 private:
  // Memory in which V is widened after the scores. Stores of one turn are never a multiple of 4 KB away from loads of
  // the other, because such a load would wait for the store.
  struct Space {
    int32_t products[kTurnBlocks][2][kTileRows][kLanes];  // of two turns
    int32_t zero[kVirtualRows][kLanes];                   // initial values of C tiles
  };
  static_assert(sizeof(Space) + Shares<V, 8>::kBytes <= sizeof(SplitScratch::wide) &&
                __builtin_offsetof(SplitScratch, wide) % kLine == 0);

  struct Job {
    Split split;
    SplitScratch* scratch;
    Space* space;
    int width;   // of a row of queries
    int steps;   // of a head
    int tiles;   // of rows
    int height;  // of each; rows beyond the last one are computed and not used

    INFENG_INLINE Job(const Split& s, SplitScratch& x)
        : split(s),
          scratch(&x),
          space((Space*)x.wide),
          width(int(round_up(s.dim, kLanes))),
          steps(int(ceil_div(s.dim, kGroup))),
          tiles(int(ceil_div(s.rows, kTileRows))),
          height(int(ceil_div(s.rows, tiles))) {}

    // Tiles 0 and 1 are C, 2 and 3 B, 4 to 7 A. The tiles of the last step (B in 3) are as large as the rest of a head.
    TileConfig shapes() const {
      const int left = split.dim - (steps - 1) * kGroup;
      TileConfig config;
      for (int tile = 0; tile < 2; ++tile) config.set(tile, height, kLine);
      config.set(2, kTileRows, kLine);
      config.set(3, left / 4, kLine);
      for (int step = 0; step < steps; ++step) config.set(4 + step, height, step + 1 < steps ? kGroup : left);
      return config;
    }

    INFENG_INLINE int first_row(int tile) const { return tile * height; }
    INFENG_INLINE int rows_of(int tile) const { return int(min_of(height, split.rows - first_row(tile))); }
  };

  // Blocks [block, block + count) and one tile of rows; count is 0 at the end.
  struct Turn {
    int block, count, tile;

    INFENG_INLINE Turn(const Job& job, int from, int rows) : block(from), count(count_at(job, from)), tile(rows) {}
    // The next turn: all blocks of a tile of rows, then the next tile of rows.
    INFENG_INLINE Turn after(const Job& job) const {
      const Turn next(job, block + count, tile);
      return next.count > 0 || tile + 1 == job.tiles ? next : Turn(job, job.split.begin, tile + 1);
    }

   private:
    static INFENG_INLINE int count_at(const Job& job, int block) {
      return int(min_of(kTurnBlocks, job.split.end - block));
    }
  };

  template <int Steps, class Ahead, class Done>
  static INFENG_NOINLINE void turns(const Job& given, const Ahead& ahead, const Done& done) {
    const Job job = given;
    Turn next(job, job.split.begin, 0);
    load_queries<Steps>(job, next);
    unrolled<kTurnBlocks>([&](auto p) INFENG_INLINE_LAMBDA {
      start<Steps, p.value>(job, next);
      end<p.value>(job, next, 0);
    });
    for (int half = 0; next.count > 0; half ^= 1) {
      const Turn now = next;
      next = now.after(job);
      dispatch<kTurnBlocks>(
          now.count, [&](auto count) INFENG_INLINE_LAMBDA { turn<Steps, count.value>(job, now, next, half, ahead); });
      if (next.tile != now.tile || next.count == 0) done(job.first_row(now.tile), job.rows_of(now.tile));
    }
  }

  // Computes the scores of `now`, whose products are in `half` of the space, and the products of `next` into the other
  // half. A whole turn takes two blocks first, then the other two, so that the last stores are read late.
  template <int Steps, int Blocks, class Ahead>
  static INFENG_INLINE void turn(const Job& job, const Turn& now, const Turn& next, int half, const Ahead& ahead) {
    constexpr int kAtOnce = Blocks == kTurnBlocks ? 2 : Blocks, kCuts = Blocks == kTurnBlocks ? 2 : kTurnBlocks;
    const int rows = job.rows_of(now.tile), part = (rows + kCuts - 1) / kCuts;
    if (next.tile != now.tile) load_queries<Steps>(job, next);
    start<Steps, 0>(job, next);
    start<Steps, 1>(job, next);
    unrolled<kTurnBlocks>([&](auto p) INFENG_INLINE_LAMBDA {
      constexpr int kCut = p.value % kCuts;
      if (p.value < Blocks && now.tile == 0) ahead(now.block + p.value);
      score_rows<kAtOnce>(job, now, p.value / kCuts * kAtOnce, half, kCut * part, int(min_of(rows, (kCut + 1) * part)));
      end<p.value>(job, next, half ^ 1);
      if constexpr (p.value + 2 < kTurnBlocks) start<Steps, p.value + 2>(job, next);
    });
  }

  template <int Steps>
  static INFENG_INLINE void load_queries(const Job& job, const Turn& turn) {
    const int8_t* q = job.scratch->qq + job.first_row(turn.tile) * job.width;
    unrolled<Steps>([&](auto s)
                        INFENG_INLINE_LAMBDA { T::template load<4 + s.value>(q + s.value * kGroup, job.width); });
  }

  // The products of a turn's tile of rows with its block number P; two are in progress at a time.
  template <int Steps, int P>
  static INFENG_INLINE void start(const Job& job, const Turn& turn) {
    if (P >= turn.count) return;
    constexpr int C = P % 2;
    const uint8_t* k = job.split.slab[turn.block + P].template k<uint8_t>();
    T::template load<C>(job.space->zero[job.first_row(turn.tile)], kLine);
    unrolled<Steps>([&](auto s) INFENG_INLINE_LAMBDA {
      constexpr int B = s.value + 1 < Steps ? 2 : 3;
      T::template load<B>(k + s.value * kTileRows * kLine, kLine);
      T::template dot_unsigned<C, 4 + s.value, B>();
    });
  }
  template <int P>
  static INFENG_INLINE void end(const Job& job, const Turn& turn, int half) {
    if (P < turn.count) T::template store<P % 2>(job.space->products[P][half], kLine);
  }

  // The scores of rows [row, last) of a turn's tile for its blocks [first, first + Blocks).
  template <int Blocks>
  static INFENG_INLINE void score_rows(const Job& job, const Turn& now, int first, int half, int row, int last) {
    const F scale = V::set(job.split.scale);
    F ks[Blocks];
    INFENG_EACH (p, Blocks) ks[p] = V::load(job.split.slab[now.block + first + p].k_scale());
    for (; row < last; ++row) {
      const int v = job.first_row(now.tile) + row;
      float* s = job.scratch->s[v] + (now.block + first) * kLanes;
      const F qs = V::set(job.scratch->qs[v]);
      F largest = V::load(job.scratch->largest[v]);
      INFENG_EACH (p, Blocks) {
        const F products = T::floats(job.space->products[first + p][half][row]);
        const F score = V::mul(products, V::mul(V::mul(qs, ks[p]), scale));
        V::store(s + p * kLanes, score);
        largest = V::max(largest, score);
      }
      V::store(job.scratch->largest[v], largest);
    }
  }
};

// V of 8 or 4 bits as IntLines<Bits>, added with tiles for blocks of many virtual rows. A B tile has 16 columns of 64
// tokens, the lines of four blocks; A tiles are shares of 64 tokens, which lie in scratch as they are wanted.
template <Vector V, class T, int Bits>
  requires Tiles<T, V>
struct TileLines : IntLines<Bits> {
  static INFENG_INLINE bool takes_shares(int rows) { return rows >= TileKeys<V, T>::kLeastRows; }

  template <class Ahead>
  static void add_shares(const Slabs& now, SplitScratch& scratch, int rows, int width, const Ahead& ahead) {
    dispatch<kMostTiles>(int(ceil_div(rows, kTileRows)),
                         [&](auto tiles) { add<tiles.value>(now, scratch, rows, width, ahead); });
  }

 private:
  using Rows = Shares<V, Bits>;
  static constexpr int kMostTiles = kVirtualRows / kTileRows, kGroups = kSplit / kGroup;
  static constexpr int kB = kMostTiles, kA = kMostTiles + 1;  // tiles; the first are C

  struct Space {
    uint8_t lines[kGroups][kTileRows][kLine];
    int32_t start[kVirtualRows][kLanes];  // initial values of C tiles
    int32_t products[kVirtualRows][kLanes];
  };
  static_assert(sizeof(Space) + Rows::kBytes <= sizeof(SplitScratch::wide) && sizeof(typename Rows::Share) == 1);

  // Rows beyond the last one are computed and not used.
  template <int Count, class Ahead>
  static INFENG_NOINLINE void add(const Slabs& now, SplitScratch& scratch, int rows, int width, const Ahead& ahead) {
    auto& space = *(Space*)scratch.wide;
    const int height = int(ceil_div(rows, Count)), first = now.begin / kBlocks, last = int(ceil_div(now.end, kBlocks));
    for (int v = 0; v < Count * height; ++v)
      for (int i = 0; i < kLanes; ++i) space.start[v][i] = Bits == 4 && v < rows ? scratch.start[v] : 0;
    TileConfig config;
    config.set(kB, kTileRows, kLine);
    for (int tile = 0; tile < Count; ++tile) {
      config.set(tile, height, kLine);
      config.set(kA + tile, height, kGroup);
    }
    T::configure(config);
    for (int d = 0; d < width; d += kLanes) {
      gather(now, space, width, d, ahead.pieces(d, 1));
      unrolled<Count>([&](auto t)
                          INFENG_INLINE_LAMBDA { T::template load<t.value>(space.start[t.value * height], kLine); });
      for (int k = first; k < last; ++k) {
        T::template load<kB>(space.lines[k], kLine);
        unrolled<Count>([&](auto t) INFENG_INLINE_LAMBDA {
          constexpr int A = kA + t.value;
          T::template load<A>(Rows::row(scratch, t.value * height) + k * kGroup, kSplit);
          if constexpr (Bits == 4)
            T::template dot_unsigned<t.value, A, kB>();
          else
            T::template dot_of_unsigned<t.value, A, kB>();
        });
      }
      unrolled<Count>(
          [&](auto t) INFENG_INLINE_LAMBDA { T::template store<t.value>(space.products[t.value * height], kLine); });
      for (int v = 0; v < rows; ++v)
        V::store(scratch.record[v] + kLanes + d, V::mul(T::floats(space.products[v]), V::set(scratch.unit[v])));
    }
    T::release();
  }

  // Copies 16 columns of V to B tiles; lines of blocks that no row sees are 0.
  template <class Pieces>
  static INFENG_INLINE void gather(const Slabs& now, Space& space, int width, int d, const Pieces& pieces) {
    for (int b = now.begin / kBlocks * kBlocks; b < int(round_up(now.end, kBlocks)); ++b) {
      uint8_t(*to)[kLine] = space.lines[b / kBlocks] + b % kBlocks * kBlocks;
      if (b < now.begin || b >= now.end) {
        __builtin_memset(to, 0, kBlocks * kLine);
        continue;
      }
      pieces.fetch(b);
      const uint8_t* from = now.slab[b].template v<uint8_t>(0) + d * Bits / 2;
      for (int g = 0; g < kLanes / 4; ++g, from += width * Bits / 2) {
        if constexpr (Bits == 8) {
          __builtin_memcpy(to[g], from, kLine);
        } else {
          for (int i = 0; i < kLine / 2; ++i) to[g][i] = from[i] & 15, to[g][kLine / 2 + i] = from[i] >> 4;
        }
      }
    }
  }
  static constexpr int kBlocks = 4;  // of 16 tokens in a B tile, of four lines each
};

template <Vector V, class T>
using AttentionInt8Tiles = AttentionScaled<V, INFENG_KV_INT8, false, TileKeys<V, T>, Int8Values<V>>;
template <Vector V, class T>
using AttentionInt8HTiles = AttentionScaled<V, INFENG_KV_INT8_H, true, TileKeys<V, T>, Int8Values<V>>;
template <Vector V, class T>
using AttentionK8V4HTiles = AttentionScaled<V, INFENG_KV_K8V4_H, true, TileKeys<V, T>, Int4Values<V>>;
template <Vector V, class T>
using AttentionInt8ITiles = AttentionScaled<V, INFENG_KV_INT8_I, false, TileKeys<V, T>, TileLines<V, T, 8>>;
template <Vector V, class T>
using AttentionInt8HITiles = AttentionScaled<V, INFENG_KV_INT8_HI, true, TileKeys<V, T>, TileLines<V, T, 8>>;
template <Vector V, class T>
using AttentionK8V4HITiles = AttentionScaled<V, INFENG_KV_K8V4_HI, true, TileKeys<V, T>, TileLines<V, T, 4>>;

// Fewest: the least rows that the kernel accepts; with fewer, other kernels spread splits over the workers.
template <Vector V, class Cache, int Fewest>
struct AttentionTiles : AttentionRows<V, Cache> {
  static int32_t accepts(const infeng_problem* p) {
    return p->rows_max >= Fewest && AttentionRows<V, Cache>::accepts(p);
  }
};

}  // namespace
}  // namespace infeng
#endif  // INFENG_OPS_ATTENTION_TILES_H
