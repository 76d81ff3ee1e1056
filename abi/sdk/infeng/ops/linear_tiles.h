// linear over integer weights and int8 activations with matrix tiles (simd/tiles.h). The numbers equal those of
// linear_int.h:
//   acc = sum over one step of q_x[k] * q_w[n][k]                   a step is 64 k, or 32 where the scales are per 32
//   out = fma(float(acc), wscale * xscale[m][g], out)               steps ascending
// or, over weights with integer sub-scales, those of linear_p32.h: wscale is applied at the end, and a wide group of
// the activation is several steps, whose products a C tile adds. If a row of the activation has one scale, the products
// of a chunk are added to integers in `cur`, through C tiles alone where there are 16 rows for each, and scaled when
// all of k is added. A step of a panel is unpacked to signed lines in scratch, which form a B tile; 16 rows of the
// activation form an A tile in place. Their product, a C tile of int32, passes through memory to the vector unit. The
// unit of work is a chunk: a few steps of one panel. The A tiles of a chunk serve all panels; the sums of 16 rows stay
// in vector registers over a chunk. The stages overlap: while one chunk is added to its sums, the next is multiplied,
// and with up to 16 rows, which need a chunk only once, the one after that is unpacked. More rows unpack a chunk of
// four panels, which stays in the L1 cache while all rows pass. SPDX-License-Identifier: Apache-2.0
#ifndef INFENG_OPS_LINEAR_TILES_H
#define INFENG_OPS_LINEAR_TILES_H

#include <infeng/ops/linear.h>
#include <infeng/ops/weights.h>
#include <infeng/simd/tiles.h>

namespace infeng {
namespace {

template <class T, class Format>
struct TileCore {
  static constexpr uint32_t kFormat = Format::kFormat;
  static constexpr uint32_t kActivation = INFENG_ACT_INT8_G64;
  // Sub-scales are part of the signed lines; the scale of each output is applied at the end.
  static constexpr bool kSubScaled = requires { Format::scales_at(0); };
  static constexpr uint32_t kWidestActivation = kSubScaled ? INFENG_ACT_INT8_G256 : INFENG_ACT_INT8_G64;
  static constexpr bool kReadsRows = kSubScaled || kFormat == INFENG_WEIGHT_INT8_ROW;
  static constexpr int kStepK = kGroup / Format::kSteps;
  static constexpr int kStepLines = kStepK / 4;  // rows of a B tile
  static constexpr int kPanels = 4;              // in scratch at a time
  // A block of rows passes all tiles while it stays in the L2 cache; larger blocks unpack less often.
  static constexpr int64_t kMostRows = 256;
  static constexpr int64_t kBlockBytes = 512 << 10;  // of a block's activations
  static constexpr int kChunk = 4;                   // steps of a chunk, at least a group of any activation
  static constexpr int64_t kDistance = 32;           // prefetch distance in steps, with few rows

  struct Scratch {
    uint8_t lines[kPanels][kChunk][kStepLines * kLine];
    float scales[kPanels][kChunk][kLanes];
    // Two chunks alternate. Stores of one are never a multiple of 4 KB away from loads of the other, because such a
    // load would wait for the store. Behind them is a tile for unused rows, see `rows_again`.
    int32_t products[kChunk][2][kTileRows][kLanes];
    int32_t behind[kTileRows][kLanes];
  };

  static INFENG_INLINE int64_t block_rows(int64_t k) {
    return min_of(max_of(kBlockBytes / max_of(k, 1) / kTileRows * kTileRows, kTileRows), kMostRows);
  }
  static constexpr int64_t scratch(int64_t k) {
    return int64_t(sizeof(Scratch)) + kMostRows * ceil_div(k, kGroup) * int64_t(sizeof(float));
  }

  template <Vector V>
    requires Tiles<T, V>
  static INFENG_NOINLINE void multiply(const LinearTile& t) {
    if (t.weight.k == 0) return clear<V>(t);
    T::configure(shapes(tile_rows(t)));
    if (t.fresh) copy_scales<V>(t);
    if (t.rows <= kTileRows)
      stream<V>(t);
    else
      blocks<V>(t);
    if constexpr (kReadsRows)
      if (sums_rows(t)) scale_sums<V>(t);
    T::release();
  }

 private:
  static INFENG_INLINE int64_t steps_of(const LinearTile& t) { return ceil_div(t.weight.k, kGroup) * Format::kSteps; }

  // The offset of a step's lines in a panel.
  static INFENG_INLINE int64_t step_at(int64_t step) {
    return Format::lines_at(step / Format::kSteps) +
           step % Format::kSteps * (2 * Format::kBits / Format::kSteps * kLine);
  }

  // All tiles have equally many rows, so that one configuration serves all.
  static INFENG_INLINE int tile_rows(const LinearTile& t) { return int(min_of(kTileRows, t.all_rows)); }

  // The last tile ends with the last row; it begins with this many rows that were computed before.
  static INFENG_INLINE int64_t rows_again(const LinearTile& t, int64_t row) {
    return max_of(row + tile_rows(t) - t.rows, 0);
  }

  // Steps of one group of the activation; more than a chunk has if the group is the row.
  static INFENG_INLINE int steps_of_group(const LinearTile& t) { return kReadsRows ? int(t.in.group) / kGroup : 1; }
  // Whether step S of a chunk of `count` steps ends a group.
  template <int S>
  static INFENG_INLINE bool is_last(int of_group, int count) {
    return ((S + 1) & (of_group - 1)) == 0 || S + 1 == count;
  }

  // Tiles 0 and 1 are C, 2 and 3 B, 4 to 7 A: the steps of a chunk.
  static TileConfig shapes(int rows) {
    TileConfig config;
    for (int tile = 0; tile < 2; ++tile) config.set(tile, rows, kLine);
    for (int tile = 2; tile < 4; ++tile) config.set(tile, kStepLines, kLine);
    for (int tile = 4; tile < 8; ++tile) config.set(tile, rows, kStepK);
    return config;
  }

  // --- the scales of the activation --- Behind Scratch, for each 64 k, are the scales of all rows, so that those of 16
  // rows are adjacent, and room for unused rows. A wide group stores them only where it begins.
  struct XScales {
    const float* at;  // a row's scale at the beginning of a chunk
    int64_t stride;   // from one 64 k to the next
    int of_group;     // steps

    // Of the group that step S is in.
    template <int S>
    INFENG_INLINE const float* of_step() const {
      return at + (S / Format::kSteps & -of_group) * stride;
    }
  };
  static INFENG_INLINE int64_t padded_rows(const LinearTile& t) { return ceil_div(t.rows, kTileRows) * kTileRows; }
  static INFENG_INLINE float* scales_of(const LinearTile& t) { return (float*)(t.scratch + sizeof(Scratch)); }
  static INFENG_INLINE XScales xscales(const LinearTile& t, int64_t row, int64_t step) {
    const int64_t stride = padded_rows(t);
    return {scales_of(t) + step / Format::kSteps * stride + row, stride, steps_of_group(t)};
  }

  template <Vector V>
  static INFENG_NOINLINE void copy_scales(const LinearTile& t) {
    const int64_t groups = ceil_div(t.weight.k, kGroup), stride = padded_rows(t);
    float* to = scales_of(t);
    for (int64_t row = 0; row < stride; ++row) {
      const float* from = row_of<float>(t.in.scale, t.row + min_of(row, t.rows - 1));
      for (int64_t g = 0; g < groups; g += steps_of_group(t)) to[g * stride + row] = from[g];
    }
  }

  // --- the stages of a chunk, step by step ---
  template <Vector V>
  static INFENG_INLINE void unpack(const uint8_t* panel, int64_t step, uint8_t* out) {
    const uint8_t* lines = panel + step_at(step);
    if constexpr (kSubScaled) {
      SubScales scales;
      V::template sub_scales<Format::kBits>(panel + Format::scales_at(step), int(step % 2), scales);
      T::template unpack_scaled<Format::kBits>(lines, scales, out);
    } else if constexpr (Format::kBits == 4) {
      constexpr int L = Format::kStepLines;
      INFENG_EACH (l, L) T::unpack_nibbles(lines + l * kLine, out + l * kLine, out + (l + L) * kLine);
    } else {
      INFENG_EACH (l, kStepLines) T::unpack_bytes(lines + l * kLine, out + l * kLine);
    }
  }

  // The products of up to 16 rows, from `row` of `t` on, with the chunk that begins with step `first`.
  struct Products {
    static constexpr int kSlot = 2 * kTileRows * kLanes;
    const int8_t* a;
    int64_t stride;
    const uint8_t* b;
    int32_t* out;
    bool fresh;    // rows or steps differ from those of the chunk before
    int of_group;  // steps
    int count;     // steps of the chunk

    INFENG_INLINE Products(const LinearTile& t, int64_t row, int64_t first, const uint8_t* lines, int32_t* products,
                           bool load, int steps)
        : a(row_of<int8_t>(t.in.q, t.row + row - rows_again(t, row)) + first * kStepK),
          stride(t.in.q.strides[0]),
          b(lines),
          out(products),
          fresh(load),
          of_group(steps_of_group(t)),
          count(steps) {}

    template <int S>
    INFENG_INLINE void step() const {
      constexpr int C = S % 2, B = 2 + S % 2, A = 4 + S;
      if (fresh) T::template load<A>(a + S * kStepK, stride);
      T::template load<B>(b + S * kStepLines * kLine, kLine);
      if (kReadsRows && of_group > 1) {
        if ((S & (of_group - 1)) == 0) T::template zero<0>();
        T::template dot<0, A, B>();
        if (is_last<S>(of_group, count)) T::template store<0>(out + S * kSlot, kLine);
        return;
      }
      T::template zero<C>();
      T::template dot<C, A, B>();
      T::template store<C>(out + S * kSlot, kLine);
    }

    // Adds a chunk of `Steps` steps to integer sums of 16 rows.
    template <int Steps>
    INFENG_INLINE void add_to(float* sums, bool first) const {
      constexpr int64_t kStride = kTileWidth * int64_t(sizeof(float));
      if (first)
        T::template zero<0>();
      else
        T::template load<0>(sums, kStride);
      unrolled<Steps>([&](auto s) INFENG_INLINE_LAMBDA {
        constexpr int B = 2 + s.value % 2, A = 4 + s.value;
        if (fresh) T::template load<A>(a + s.value * kStepK, stride);
        T::template load<B>(b + s.value * kStepLines * kLine, kLine);
        T::template dot<0, A, B>();
      });
      T::template store<0>(sums, kStride);
    }
  };

  // The sums of 16 rows and a panel over a chunk.
  template <Vector V>
  struct Sums {
    typename V::F out[kTileRows];
    const int32_t* product;
    XScales x;

    INFENG_INLINE Sums(const int32_t* products, XScales scales) : product(products), x(scales) {}
    // Adds step S, whose weights have `scale`. Unused rows are computed too.
    template <int S>
    INFENG_INLINE void step(typename V::F scale) {
      const float* xscales = x.template of_step<S>();
      INFENG_EACH (r, kTileRows) {
        const auto xscale = V::set(xscales[r]);
        const auto factor = kSubScaled ? xscale : V::mul(scale, xscale);
        out[r] = V::fma(T::floats(product + S * Products::kSlot + r * kLanes), factor, out[r]);
      }
    }
    INFENG_INLINE void load(const float* cur, bool first) {
      if (first)
        INFENG_EACH (r, kTileRows) out[r] = V::zero();
      else
        INFENG_EACH (r, kTileRows) out[r] = V::load(cur + r * kTileWidth);
    }
    INFENG_INLINE void store(float* cur, const uint8_t* panel, bool last) {
      if constexpr (kSubScaled)
        if (last) {
          const auto d = V::load((const float*)panel);
          INFENG_EACH (r, kTileRows) out[r] = V::mul(out[r], d);
        }
      INFENG_EACH (r, kTileRows) V::store(cur + r * kTileWidth, out[r]);
    }
  };

  // Adds the products of a chunk with 16 rows and a panel to integer sums. Unused rows are added too.
  template <Vector V>
  static INFENG_INLINE void add_sums(const int32_t* products, int steps, float* cur, bool first) {
    const float* from = (const float*)(products + (steps - 1) * Products::kSlot);
    INFENG_EACH (r, kTileRows) {
      const auto product = V::load_i32(from + r * kLanes);
      float* c = cur + r * kTileWidth;
      V::store_i32(c, first ? product : V::iadd(V::load_i32(c), product));
    }
  }

  // Unpacks the lines of one step and the scales before them.
  template <Vector V>
  static INFENG_INLINE void fetch(const uint8_t* lines) {
    constexpr int kFetch = (Format::kFetchLines + Format::kSteps - 1) / Format::kSteps;
    INFENG_EACH (l, kFetch) V::prefetch(lines + Format::kFetchFrom + l * kLine);
  }

  // --- up to 16 rows ---
  // The order of chunks: one chunk of each panel, then the next chunk of each.
  struct Place {
    const uint8_t* data;  // of the panel
    int64_t panel = 0;
    int64_t step = 0;

    INFENG_INLINE void advance(const LinearTile& t) {
      data += t.weight.panel_bytes;
      if (++panel < t.panels) return;
      panel = 0;
      data = t.panel;
      step += kChunk;
    }
  };

  template <Vector V>
  static INFENG_INLINE void stream(const LinearTile& t) {
    const int64_t steps = steps_of(t);
    const int of_group = steps_of_group(t);
    const bool whole = kReadsRows && sums_rows(t);
    const auto chunk_at = [&](const Place& place) { return int(min_of(kChunk, steps - place.step)); };
    Scratch& scratch = *(Scratch*)t.scratch;
    Place unpacking{t.panel}, multiplying{t.panel}, adding{t.panel};
    for (int64_t turn = 0; adding.step < steps; ++turn) {
      const int now = turn & 1, before = now ^ 1;
      const int unpacked = chunk_at(unpacking), multiplied = turn < 1 ? 0 : chunk_at(multiplying);
      const int added = turn < 2 ? 0 : chunk_at(adding);
      const uint8_t* ahead = fetched(t, unpacking, steps);
      const Products products(t, 0, multiplying.step, scratch.lines[before][0], scratch.products[0][before][0],
                              multiplying.panel == 0, multiplied);
      float* cur = t.cur + adding.panel * kLanes;
      const int32_t* product = scratch.products[0][now][rows_again(t, 0)];
      Sums<V> sums(product, xscales(t, 0, adding.step));
      if (added && !whole) sums.load(cur, adding.step == 0);
      unrolled<kChunk>([&](auto s) INFENG_INLINE_LAMBDA {
        if (s.value < unpacked) {
          fetch<V>(ahead + step_at(s.value) - step_at(0));
          unpack<V>(unpacking.data, unpacking.step + s.value, scratch.lines[now][s.value]);
        }
        if (s.value < multiplied) products.template step<s.value>();
        if (s.value < added) {
          if (!whole && is_last<s.value>(of_group, added))
            sums.template step<s.value>(scale_at<V>(adding.data, adding.step + s.value));
          if (s.value % 2 == 0) t.feed.template step<V>();
        }
      });
      if (added && whole)
        add_sums<V>(product, added, cur, adding.step == 0);
      else if (added)
        sums.store(cur, adding.data, adding.step + added == steps);
      unpacking.advance(t);
      if (multiplied) multiplying.advance(t);
      if (added) adding.advance(t);
    }
  }

  // The memory to fetch while the chunk at `place` is unpacked: the same panel further on, or the next one at its end.
  static INFENG_INLINE const uint8_t* fetched(const LinearTile& t, const Place& place, int64_t steps) {
    const int64_t step = place.step + kDistance;
    if (step < steps) return place.data + step_at(step);
    return (t.next ? t.next : t.panel) + place.panel * t.weight.panel_bytes + step_at(step - steps);
  }

  template <Vector V>
  static INFENG_INLINE auto scale_at(const uint8_t* panel, int64_t step) {
    if constexpr (kSubScaled)
      return V::zero();  // not used
    else
      return Format::template scale<V>(panel, step / Format::kSteps, int(step % Format::kSteps));
  }

  // --- more rows ---
  // Steps [step, step + steps) of `panels` panels from `data` on. The lines at `ahead` are needed next.
  struct Chunk {
    const uint8_t* data;
    const uint8_t* ahead;
    int64_t panel;  // of the tile
    int panels;
    int64_t step;
    int steps;
    bool last;
  };

  template <Vector V>
  static INFENG_INLINE void blocks(const LinearTile& t) {
    const int64_t steps = steps_of(t), bytes = t.weight.panel_bytes;
    Scratch& scratch = *(Scratch*)t.scratch;
    for_panels<kPanels>(t.panels, [&](int64_t p, auto count) {
      const uint8_t* panel = t.panel + p * bytes;
      const uint8_t* after = p + count.value < t.panels ? panel + count.value * bytes : t.next;
      for (int64_t step = 0; step < steps; step += kChunk) {
        const bool last = step + kChunk >= steps;
        const uint8_t* ahead = last ? (after ? after : panel) + step_at(0) : panel + step_at(step + kChunk);
        const Chunk chunk{panel, ahead, p, count.value, step, int(min_of(kChunk, steps - step)), last};
        unpack_panels<V>(chunk, bytes, scratch);
        dispatch<kChunk>(chunk.steps, [&](auto n) INFENG_INLINE_LAMBDA {
          if (kReadsRows && sums_rows(t))
            add_to_sums<V, n.value>(t, chunk, scratch);
          else
            add_chunk<V, n.value>(t, chunk, scratch);
        });
      }
    });
  }

  template <Vector V>
  static INFENG_NOINLINE void unpack_panels(const Chunk& chunk, int64_t bytes, Scratch& scratch) {
    for (int p = 0; p < chunk.panels; ++p)
      for (int s = 0; s < chunk.steps; ++s) {
        const uint8_t* panel = chunk.data + p * bytes;
        unpack<V>(panel, chunk.step + s, scratch.lines[p][s]);
        if constexpr (!kSubScaled) V::store(scratch.scales[p][s], scale_at<V>(panel, chunk.step + s));
      }
  }

  // Adds a chunk of `Steps` steps to all rows, 16 rows and a panel per turn; products are computed one turn ahead.
  template <Vector V, int Steps>
  static INFENG_NOINLINE void add_chunk(const LinearTile& t, const Chunk& chunk, Scratch& scratch) {
    const int64_t bytes = t.weight.panel_bytes;
    const int of_group = steps_of_group(t);
    const auto products = [&](int64_t row, int p, int turn) INFENG_INLINE_LAMBDA {
      return Products(t, row, chunk.step, scratch.lines[p][0], scratch.products[0][turn][0], p == 0, Steps);
    };
    Products next = products(0, 0, 0);
    unrolled<Steps>([&](auto s) INFENG_INLINE_LAMBDA { next.template step<s.value>(); });
    int turn = 0;
    for (int64_t row = 0; row < t.rows; row += kTileRows) {
      float* cur = t.cur + row * kTileWidth + chunk.panel * kLanes;
      for (int p = 0; p < chunk.panels; ++p, cur += kLanes, turn ^= 1) {
        const bool last = p + 1 == chunk.panels, more = !last || row + kTileRows < t.rows;
        if (more) next = last ? products(row + kTileRows, 0, turn ^ 1) : products(row, p + 1, turn ^ 1);
        Sums<V> sums(scratch.products[0][turn][rows_again(t, row)], xscales(t, row, chunk.step));
        sums.load(cur, chunk.step == 0);
        unrolled<Steps>([&](auto s) INFENG_INLINE_LAMBDA {
          if (more) next.template step<s.value>();
          if (row == 0) {
            fetch<V>(chunk.ahead + p * bytes + step_at(s.value) - step_at(0));
            t.feed.template step<V>();
          }
          if (is_last<s.value>(of_group, Steps))
            sums.template step<s.value>(kSubScaled ? V::zero() : V::load(scratch.scales[p][s.value]));
        });
        sums.store(cur, chunk.data + p * bytes, chunk.last);
      }
    }
  }

  // Adds a chunk of `Steps` steps to the integer sums of all rows. Only the last rows need the vector unit: their tile
  // begins with rows to which the chunk was added before.
  template <Vector V, int Steps>
  static INFENG_NOINLINE void add_to_sums(const LinearTile& t, const Chunk& chunk, Scratch& scratch) {
    const int64_t bytes = t.weight.panel_bytes;
    const bool first = chunk.step == 0;
    for (int64_t row = 0; row < t.rows; row += kTileRows) {
      const int64_t again = rows_again(t, row);
      float* cur = t.cur + row * kTileWidth + chunk.panel * kLanes;
      for (int p = 0; p < chunk.panels; ++p, cur += kLanes) {
        const Products products(t, row, chunk.step, scratch.lines[p][0], scratch.products[0][0][0], p == 0, Steps);
        if (row == 0)
          unrolled<Steps>([&](auto s) INFENG_INLINE_LAMBDA {
            fetch<V>(chunk.ahead + p * bytes + step_at(s.value) - step_at(0));
            t.feed.template step<V>();
          });
        if (again == 0) {
          products.template add_to<Steps>(cur, first);
        } else {
          unrolled<Steps>([&](auto s) INFENG_INLINE_LAMBDA { products.template step<s.value>(); });
          add_sums<V>(scratch.products[0][0][again], Steps, cur, first);
        }
      }
    }
  }
};

// Fewest: the least rows that the kernel accepts. With fewer, a vector kernel that uses weights as they stream in is at
// least as fast, because unpacking costs the same for one row as for sixteen.
template <Vector V, class T, class Format, int Fewest>
struct LinearTiles : Linear<V, TileCore<T, Format>> {
  static int32_t accepts(const infeng_problem* p) {
    return p->rows_max >= Fewest && Linear<V, TileCore<T, Format>>::accepts(p);
  }
};

}  // namespace
}  // namespace infeng
#endif  // INFENG_OPS_LINEAR_TILES_H
