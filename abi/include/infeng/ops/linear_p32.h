// linear over weights with integer sub-scales and int8 activations. Per group of 64 k, ascending:
//   acc = sum over the group of q_x[k] * s (u - z)                  exact; s and z are those of k's 32
//   out = fma(float(acc), xscale[m][g], out)
// and at the end out = out * d[n]. The zero points are taken out by the sums of x over 32 k, which the core makes once
// for the rows of a call. As in linear_int.h there are two ways through a tile: few rows use the weights as they stream
// in, many rows unpack a chunk of four panels and its sub-scales into scratch.
// SPDX-License-Identifier: Apache-2.0
#ifndef INFENG_OPS_LINEAR_P32_H
#define INFENG_OPS_LINEAR_P32_H

#include <infeng/ops/linear.h>
#include <infeng/ops/weights.h>

namespace infeng {
namespace {

template <class Format>
struct P32Core {
  static constexpr uint32_t kFormat = Format::kFormat;
  static constexpr uint32_t kActivation = INFENG_ACT_INT8_G64;
  static constexpr int kBits = Format::kBits;
  static constexpr int64_t kChunk = 8;  // groups
  static constexpr int kPanels = 4;
  static constexpr int64_t kPanelLines = kChunk * kGroup * kLanes;
  static constexpr int64_t kScratch = kPanels * (kPanelLines + kChunk * int64_t(sizeof(SubScales)));

  static constexpr int64_t scratch(int64_t k) {
    return kScratch + kRowBlock * ceil_div(k, kGroup) * int64_t(sizeof(int32_t));
  }

  template <SubScaled V>
  static void multiply(const LinearTile& t) {
    const int64_t groups = ceil_div(t.weight.k, kGroup);
    if (t.fresh) subtract_sums<V>(t, groups);
    // Three passes over packed lines cost as much as unpacking them once.
    if (t.rows <= 3 * V::kScaledRows)
      stream<V>(t, groups);
    else
      blocks<V>(t, groups);
    scale_outputs<V>(t);
  }

 private:
  // Panels of one dot_scaled out of `panels`; what it has added up goes to its outputs before the next one.
  template <SubScaled V>
  static constexpr int panels_of_dot(int panels) {
    return panels < V::kScaledPanels ? panels : V::kScaledPanels;
  }
  // Behind the lines in scratch: of each row and group, minus the sums of its halves, as two int16.
  static INFENG_INLINE int32_t* minus_of(const LinearTile& t, int64_t row, int64_t groups) {
    return (int32_t*)(t.scratch + kScratch) + row * groups;
  }
  template <SubScaled V>
  static INFENG_NOINLINE void subtract_sums(const LinearTile& t, int64_t groups) {
    for (int64_t m = 0; m < t.rows; ++m)
      V::minus_half_sums(row_of<int8_t>(t.in.q, t.row + m), row_of<int32_t>(t.in.sum, t.row + m), groups,
                         minus_of(t, m, groups));
  }

  // Rows [row, row + M) of the tile's activation.
  template <int M>
  struct Rows {
    const int8_t* q[M];
    const float* scale[M];
    const int32_t* minus[M];

    INFENG_INLINE Rows(const LinearTile& t, int64_t row, int64_t groups) {
      INFENG_EACH (m, M) {
        q[m] = row_of<int8_t>(t.in.q, t.row + row + m);
        scale[m] = row_of<float>(t.in.scale, t.row + row + m);
        minus[m] = minus_of(t, row + m, groups);
      }
    }
    INFENG_INLINE void at(int64_t g, const int8_t* (&x)[M], int32_t (&sums)[M]) const {
      INFENG_EACH (m, M) {
        x[m] = q[m] + g * kGroup;
        sums[m] = minus[m][g];
      }
    }
  };

  // --- few rows: straight from the panel ---
  template <SubScaled V>
  static void stream(const LinearTile& t, int64_t groups) {
    const int64_t chunk = t.rows <= V::kScaledRows ? groups : kChunk;
    const int64_t bytes = t.weight.panel_bytes;
    for_panels<2>(t.panels, [&](int64_t p, auto count) {
      const uint8_t* panel = t.panel + p * bytes;
      const uint8_t* next = p + 2 < t.panels ? panel + 2 * bytes : t.next ? t.next : panel;
      for (int64_t g = 0; g < groups; g += chunk)
        balanced_blocks<V::kScaledRows>(int(t.rows), [&](int m, auto rows) {
          packed<V, rows.value, count.value>(t, panel, next, m, g, min_of(g + chunk, groups), groups,
                                             t.cur + m * kTileWidth + p * kLanes);
        });
    });
  }

  template <SubScaled V, int M, int P>
  static INFENG_NOINLINE void packed(const LinearTile& t, const uint8_t* panel, const uint8_t* next, int64_t row,
                                     int64_t g0, int64_t g1, int64_t groups, float* cur) {
    using F = typename V::F;
    const int64_t bytes = t.weight.panel_bytes, distance = Format::lines_at(kChunk) - Format::lines_at(0);
    const Rows<M> in(t, row, groups);
    F out[M][P];
    INFENG_EACH (m, M)
      INFENG_EACH (p, P) out[m][p] = g0 == 0 ? V::zero() : V::load(cur + m * kTileWidth + p * kLanes);
    for (int64_t g = g0; g < g1; ++g) {
      const int64_t lines = Format::lines_at(g);
      // As in linear_int.h: one line is fetched for each that is used.
      const uint8_t* ahead = (lines + distance < bytes ? panel : next - bytes) + lines + distance + Format::kFetchFrom;
      t.feed.template step<V>();
      const int8_t* x[M];
      int32_t minus[M];
      const uint8_t* w[P];
      SubScales scales[P];
      const SubScales* s[P];
      typename V::I acc[M][P];
      in.at(g, x, minus);
      INFENG_EACH (p, P) {
        w[p] = panel + p * bytes + lines;
        V::template sub_scales<kBits>(panel + p * bytes + Format::scales_at(g), int(g % 2), scales[p]);
        s[p] = scales + p;
      }
      V::template dot_packed<kBits, M, P>(acc, w, s, x, minus, [&](int l) INFENG_INLINE_LAMBDA {
        INFENG_EACH (p, P) V::prefetch(ahead + p * bytes + l * kLine);
        if (l == 0)
          INFENG_EACH (p, P) V::prefetch(ahead + p * bytes + (Format::kFetchLines - 1) * kLine);
      });
      INFENG_EACH (m, M) {
        const F xscale = V::set(in.scale[m][g]);
        INFENG_EACH (p, P) out[m][p] = V::fma(V::to_float(acc[m][p]), xscale, out[m][p]);
      }
    }
    INFENG_EACH (m, M)
      INFENG_EACH (p, P) V::store(cur + m * kTileWidth + p * kLanes, out[m][p]);
  }

  // --- many rows: unpacked ---
  struct Unpacked {
    const uint8_t* lines;     // kPanelLines from panel to panel
    const SubScales* scales;  // kChunk from panel to panel
  };

  template <SubScaled V>
  static void blocks(const LinearTile& t, int64_t groups) {
    const int64_t bytes = t.weight.panel_bytes;
    clear<V>(t);
    for_panels<kPanels>(t.panels, [&](int64_t p, auto count) {
      constexpr int P = count.value;
      const uint8_t* panel = t.panel + p * bytes;
      const uint8_t* next = p + P < t.panels ? panel + P * bytes : t.next;
      for (int64_t g = 0; g < groups; g += kChunk) {
        const int64_t end = min_of(g + kChunk, groups);
        // Where the chunk that follows starts, as a base to which lines_at of this chunk's groups can be added.
        const uint8_t* ahead = end < groups ? panel + Format::lines_at(end) - Format::lines_at(g)
                                            : (next ? next : panel) + Format::lines_at(0) - Format::lines_at(g);
        const Unpacked source = unpack<V>(panel, bytes, P, g, end, t.scratch);
        int fetched = 0;
        balanced_blocks<V::kScaledRows>(int(t.rows), [&](int m, auto rows) {
          constexpr int M = rows.value;
          float* cur = t.cur + m * kTileWidth + p * kLanes;
          if (fetched < P) {
            block<V, M, P, 1>(t, source, m, g, end, groups, cur, ahead + fetched * bytes);
            ++fetched;
          } else {
            block<V, M, P, 0>(t, source, m, g, end, groups, cur, ahead);
          }
        });
      }
    });
  }

  template <SubScaled V>
  static INFENG_NOINLINE Unpacked unpack(const uint8_t* panel, int64_t bytes, int panels, int64_t g0, int64_t g1,
                                         uint8_t* scratch) {
    SubScales* scales = (SubScales*)(scratch + kPanels * kPanelLines);
    for (int p = 0; p < panels; ++p, panel += bytes)
      for (int64_t g = g0; g < g1; ++g) {
        SubScales& s = scales[p * kChunk + g - g0];
        V::template sub_scales<kBits>(panel + Format::scales_at(g), int(g % 2), s);
        V::template unpack_scaled<kBits>(panel + Format::lines_at(g), s,
                                         scratch + p * kPanelLines + (g - g0) * (kGroup * kLanes));
      }
    return {scratch, scales};
  }

  // Adds groups [g0, g1) of `source` to cur for M rows and P panels, and fetches the lines of `Fetch` panels at
  // `ahead`.
  template <SubScaled V, int M, int P, int Fetch>
  static INFENG_NOINLINE void block(const LinearTile& t, const Unpacked& source, int64_t row, int64_t g0, int64_t g1,
                                    int64_t groups, float* cur, const uint8_t* ahead) {
    constexpr int S = panels_of_dot<V>(P);
    const Rows<M> in(t, row, groups);
    const uint8_t* lines = source.lines;
    const SubScales* scales = source.scales;
    for (int64_t g = g0; g < g1; ++g, lines += kGroup * kLanes, ++scales) {
      const uint8_t* fetch = ahead + Format::lines_at(g) + Format::kFetchFrom;
      t.feed.template step<V>();
      const int8_t* x[M];
      int32_t minus[M];
      in.at(g, x, minus);
      INFENG_EACH (first, P / S) {
        const uint8_t* w[S];
        const SubScales* s[S];
        typename V::I acc[M][S];
        INFENG_EACH (p, S) {
          w[p] = lines + (first * S + p) * kPanelLines;
          s[p] = scales + (first * S + p) * kChunk;
        }
        V::template dot_scaled<kBits, M, S>(acc, w, s, x, minus, [&](int l) INFENG_INLINE_LAMBDA {
          if (first == 0 && l < Format::kFetchLines)
            INFENG_EACH (p, Fetch) V::prefetch(fetch + p * t.weight.panel_bytes + l * kLine);
        });
        INFENG_EACH (m, M) {
          const auto xscale = V::set(in.scale[m][g]);
          INFENG_EACH (p, S) {
            float* c = cur + m * kTileWidth + (first * S + p) * kLanes;
            V::store(c, V::fma(V::to_float(acc[m][p]), xscale, V::load(c)));
          }
        }
      }
    }
  }
};

template <SubScaled V, class Format>
using LinearP32 = Linear<V, P32Core<Format>>;

}  // namespace
}  // namespace infeng
#endif  // INFENG_OPS_LINEAR_P32_H
