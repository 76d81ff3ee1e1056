// linear over integer weights and int8 activations on a machine that multiplies tiles (simd/tiles.h). The numbers are
// those of linear_int.h:
//   acc = sum over one step of q_x[k] * q_w[n][k]                   a step is 64 k, or 32 where the scales are per 32
//   out = fma(float(acc), wscale * xscale[m][g], out)               steps ascending
// A few steps of a few panels become signed lines in scratch that stays in the first-level cache while all rows pass: a
// step of a panel is a B tile there, and 16 rows of the activation are an A tile as they lie in memory. Their product,
// a C tile of int32, reaches the vector unit through a small ring in memory. The sums of 16 rows stay in vector
// registers over a chunk of steps. The tile unit runs a little ahead, so that both work at the same time.
// SPDX-License-Identifier: Apache-2.0
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
  static constexpr int kStepK = kGroup / Format::kSteps;
  static constexpr int kStepLines = kStepK / 4;  // rows of a B tile
  static constexpr int kPanels = 4;              // in scratch at a time
  static constexpr int kChunk = 4;               // steps of each
  static constexpr int kAhead = 2;               // steps from a product to its use
  static constexpr int kRing = 4;                // products in memory; each has a C tile of its own

  struct Scratch {
    uint8_t lines[kPanels][kChunk][kStepLines * kLine];
    float scales[kPanels][kChunk][kLanes];
    float xscales[kTileRows][kChunk];
    // Rows that nobody wants lie in the first half, see `rows`.
    int32_t products[kRing][2 * kTileRows][kLanes];
  };
  static constexpr int64_t kScratch = sizeof(Scratch);

  template <Vector V>
    requires Tiles<T, V>
  static INFENG_NOINLINE void multiply(const LinearTile& t) {
    const int64_t steps = ceil_div(t.args.weight.k, kGroup) * Format::kSteps, bytes = t.args.weight.panel_bytes;
    Scratch& scratch = *(Scratch*)t.scratch;
    T::configure(shapes(tile_rows(t)));
    clear<V>(t);
    for_panels<kPanels>(t.panels, [&](int64_t p, auto count) {
      const uint8_t* panel = t.panel + p * bytes;
      const uint8_t* after = p + count.value < t.panels ? panel + count.value * bytes : t.next;
      for (int64_t step = 0; step < steps; step += kChunk) {
        const bool last = step + kChunk >= steps;
        const Chunk chunk{panel, p, count.value, step, int(min_of(kChunk, steps - step))};
        const uint8_t* ahead = last ? (after ? after : panel) + step_at(0) : panel + step_at(step + kChunk);
        unpack<V>(chunk, bytes, scratch);
        for (int64_t row = 0; row < t.rows; row += kTileRows, ahead = nullptr) rows<V>(t, chunk, row, ahead, scratch);
      }
    });
    T::release();
  }

 private:
  // Steps [step, step + steps) of `panels` panels, the first at `data`.
  struct Chunk {
    const uint8_t* data;
    int64_t panel;  // of the tile
    int panels;
    int64_t step;
    int steps;
  };

  // Every tile has as many rows, so that one configuration serves all.
  static INFENG_INLINE int tile_rows(const LinearTile& t) { return int(min_of(kTileRows, t.args.common.rows)); }

  // Tiles 0 to 3 are C, 4 and 5 A, 6 and 7 B.
  static TileConfig shapes(int rows) {
    TileConfig config;
    for (int tile = 0; tile < 4; ++tile) config.set(tile, rows, kLine);
    for (int tile = 4; tile < 6; ++tile) config.set(tile, rows, kStepK);
    for (int tile = 6; tile < 8; ++tile) config.set(tile, kStepLines, kLine);
    return config;
  }

  // Where a step's lines are in a panel.
  static INFENG_INLINE int64_t step_at(int64_t step) {
    return Format::lines_at(step / Format::kSteps) + step % Format::kSteps * (8 / Format::kSteps * kLine);
  }

  template <Vector V>
  static INFENG_NOINLINE void unpack(const Chunk& chunk, int64_t bytes, Scratch& scratch) {
    for (int p = 0; p < chunk.panels; ++p)
      for (int s = 0; s < chunk.steps; ++s) {
        const uint8_t* panel = chunk.data + p * bytes;
        const uint8_t* lines = panel + step_at(chunk.step + s);
        uint8_t* out = scratch.lines[p][s];
        if constexpr (Format::kBits == 4) {
          constexpr int L = Format::kStepLines;
          INFENG_EACH (l, L) T::unpack_nibbles(lines + l * kLine, out + l * kLine, out + (l + L) * kLine);
        } else {
          INFENG_EACH (l, kStepLines) T::unpack_bytes(lines + l * kLine, out + l * kLine);
        }
        const int64_t step = chunk.step + s;
        V::store(scratch.scales[p][s],
                 Format::template scale<V>(panel, step / Format::kSteps, int(step % Format::kSteps)));
      }
  }

  // A chunk's part of up to 16 rows from `row` on, all panels; fetches the lines at `ahead`, if any.
  template <Vector V>
  static INFENG_NOINLINE void rows(const LinearTile& t, const Chunk& chunk, int64_t row, const uint8_t* ahead,
                                   Scratch& scratch) {
    constexpr int kLines = kStepLines * kLine, kSlot = 2 * kTileRows * kLanes;
    const infeng_activation& in = t.args.in;
    const int wanted = int(min_of(kTileRows, t.rows - row));
    // With fewer rows left than a tile has, it ends with the last one and begins with some that were done before.
    const int again = tile_rows(t) - wanted;
    const int64_t stride = in.q.strides[0];
    const int8_t* a = row_of<int8_t>(in.q, t.row + row - again) + chunk.step * kStepK;
    const uint8_t* b = scratch.lines[0][0];
    int32_t* products = scratch.products[0][kTileRows];
    const unsigned total = unsigned(chunk.panels * chunk.steps);
    unsigned made = 0, used = 0;
    int step = 0;
    const auto multiply_as = [&](auto index) INFENG_INLINE_LAMBDA {
      constexpr int C = index.value, A = 4 + C % 2, B = 6 + C % 2;
      T::template load<A>(a + step * kStepK, stride);
      T::template load<B>(b + step * kLines, kLine);
      T::template zero<C>();
      T::template dot<C, A, B>();
      T::template store<C>(products + C * kSlot - again * kLanes, kLine);
    };
    const auto multiply_next = [&]() INFENG_INLINE_LAMBDA {
      dispatch<kRing>(int(made++ % kRing) + 1,
                      [&](auto n) INFENG_INLINE_LAMBDA { multiply_as(Constant<n.value - 1>{}); });
      if (++step == chunk.steps) {
        step = 0;
        b += kChunk * kLines;
      }
    };

    copy_scales<V>(in.scale, t.row + row, wanted, chunk, scratch);
    while (made < kAhead && made < total) multiply_next();
    float* cur = t.cur + row * kTileWidth + chunk.panel * kLanes;
    for (int p = 0; p < chunk.panels; ++p, cur += kLanes) {
      typename V::F out[kTileRows];
      INFENG_EACH (r, kTileRows) out[r] = V::load(cur + r * kTileWidth);
      for (int s = 0; s < chunk.steps; ++s, ++used) {
        if (made < total) multiply_next();
        if (ahead) {
          fetch<V>(ahead + p * t.args.weight.panel_bytes + step_at(s) - step_at(0));
          t.feed.template step<V>();
        }
        const auto scale = V::load(scratch.scales[p][s]);
        const int32_t* product = products + used % kRing * kSlot;
        const float* x = scratch.xscales[0] + s / Format::kSteps;
        INFENG_EACH (r, kTileRows)
          out[r] = V::fma(T::floats(product + r * kLanes), V::mul(scale, V::set(x[r * kChunk])), out[r]);
      }
      INFENG_EACH (r, kTileRows) V::store(cur + r * kTileWidth, out[r]);
    }
  }

  // The lines of one step, and the scales before them.
  template <Vector V>
  static INFENG_INLINE void fetch(const uint8_t* lines) {
    constexpr int kFetch = (Format::kFetchLines + Format::kSteps - 1) / Format::kSteps;
    INFENG_EACH (l, kFetch) V::prefetch(lines + Format::kFetchFrom + l * kLine);
  }

  // The chunk's scales of `wanted` rows, at distances that the compiler knows; rows behind them are computed but not
  // used.
  template <Vector V>
  static INFENG_INLINE void copy_scales(const infeng_tensor& scale, int64_t row, int wanted, const Chunk& chunk,
                                        Scratch& scratch) {
    const int groups = int(ceil_div(chunk.steps, Format::kSteps));
    for (int r = 0; r < kTileRows; ++r) {
      const float* from = row_of<float>(scale, row + r) + chunk.step / Format::kSteps;
      V::store(scratch.xscales[r], r < wanted ? V::load(from, groups) : V::zero(), groups);
    }
  }
};

// Fewest: the least number of rows for which the kernel is offered. Below it, a vector kernel that works on the weights
// as they stream in is as fast or faster, since unpacking costs the same for one row as for sixteen.
template <Vector V, class T, class Format, int Fewest>
struct LinearTiles : Linear<V, TileCore<T, Format>> {
  static int32_t accepts(const infeng_problem* p) {
    return p->rows_max >= Fewest && Linear<V, TileCore<T, Format>>::accepts(p);
  }
};

}  // namespace
}  // namespace infeng
#endif  // INFENG_OPS_LINEAR_TILES_H
