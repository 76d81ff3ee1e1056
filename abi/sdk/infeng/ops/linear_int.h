// linear over integer weights and int8 activations. Per group of 64 k (scales per 32: per half group), ascending:
//   acc = sum over the group of q_x[k] * q_w[n][k]                  exact, V's group_dot
//   out = fma(float(acc), wscale * xscale[m][g], out)
// Over rows with one scale, an int8 weight with one scale per output has one acc for all of k: out = (float(acc) *
// xscale[m]) * wscale, and `cur` holds the sums from chunk to chunk. A tile is computed in one of two ways. With few
// rows, each line of weights is used as it streams in from memory: the int32 and f32 accumulators of two panels x M
// rows stay in registers. With many rows, K is cut into chunks: a chunk of four panels is unpacked to u8 lines in
// scratch, which stay in the L1 cache while all rows pass. SPDX-License-Identifier: Apache-2.0
#ifndef INFENG_OPS_LINEAR_INT_H
#define INFENG_OPS_LINEAR_INT_H

#include <infeng/ops/linear.h>
#include <infeng/ops/weights.h>

namespace infeng {
namespace {

// Rows [row, row + M) of an int8 activation.
template <Vector V, int M>
struct IntRows {
  const int8_t* q[M];
  const float* scale[M];
  const int32_t* sum[M];

  INFENG_INLINE IntRows(const infeng_activation& in, int64_t row) {
    INFENG_EACH (m, M) {
      q[m] = row_of<int8_t>(in.q, row + m);
      scale[m] = row_of<float>(in.scale, row + m);
      sum[m] = row_of<int32_t>(in.sum, row + m);
    }
  }
  // The inputs and their sums for step s of group g.
  template <int Steps>
  INFENG_INLINE void step(int64_t g, int s, const int8_t* (&x)[M], int32_t (&total)[M]) const {
    INFENG_EACH (m, M) {
      x[m] = q[m] + g * kGroup + s * (kGroup / Steps);
      total[m] = Steps == 1 ? sum[m][g] : V::sum_i8(x[m], kGroup / Steps);
    }
  }
};

// Panels of u8 lines: of an int8 weight, or unpacked nibbles, which have a line of f32 scales for each step of the
// chunk. Strides are in bytes.
struct Lines {
  const uint8_t* lines;  // of the chunk's first group
  int64_t panel_stride;
  const uint8_t* scales;  // for an int8 weight, the panel
  int64_t scale_panel_stride;
};

template <class Format>
struct IntCore {
  static constexpr uint32_t kFormat = Format::kFormat;
  static constexpr uint32_t kActivation = INFENG_ACT_INT8_G64;
  static constexpr bool kReadsRows = Format::kFormat == INFENG_WEIGHT_INT8_ROW;
  static constexpr int kSteps = Format::kSteps;
  static constexpr int64_t kChunk = 8;  // groups
  static constexpr int kPanels = 4;
  static constexpr bool kNibbles = Format::kBits == 4;
  static constexpr int64_t kPanelLines = kChunk * kGroup * kLanes;
  static constexpr int64_t kPanelScales = kChunk * kSteps * kLine;
  static constexpr int64_t kScratch = kNibbles ? kPanels * (kPanelLines + kPanelScales) : 0;

  template <Vector V>
  static void multiply(const LinearTile& t) {
    const int64_t groups = ceil_div(t.weight.k, kGroup);
    // Three passes over nibbles cost as much as unpacking them once.
    if constexpr (kNibbles)
      if (t.rows <= 3 * V::kRows) return stream<V>(t, groups);
    clear<V>(t);
    const int64_t bytes = t.weight.panel_bytes;
    for_panels<kPanels>(t.panels, [&](int64_t p, auto count) {
      constexpr int P = count.value;
      const uint8_t* panel = t.panel + p * bytes;
      const uint8_t* next = p + P < t.panels ? panel + P * bytes : t.next;
      for (int64_t g = 0; g < groups; g += kChunk) {
        const int64_t end = min_of(g + kChunk, groups);
        const uint8_t* ahead = following(panel, next, g, end, groups);
        Lines source = {panel + Format::lines_at(g), bytes, panel, bytes};
        if constexpr (kNibbles) source = unpack<V>(panel, bytes, P, g, end, t.scratch);
        // The first blocks of rows fetch the next chunk: all panels at once if the call is bound by memory, else one
        // panel each.
        int fetched = 0;
        constexpr int kFetch = kNibbles ? 1 : P;
        balanced_blocks<V::kBlockRows>(int(t.rows), [&](int m, auto rows) {
          constexpr int S = V::kBlockPanels < P ? V::kBlockPanels : P;
          float* cur = t.cur + m * kTileWidth + p * kLanes;
          block<V, rows.value, S>(t, source, P, m, g, end, cur, ahead + fetched * bytes, fetched < P);
          fetched += kFetch;
        });
      }
    });
    if constexpr (kReadsRows)
      if (sums_rows(t)) scale_sums<V>(t);
  }

 private:
  // The base of the chunk after [g, end), to which lines_at of this chunk's groups is added.
  static const uint8_t* following(const uint8_t* panel, const uint8_t* next, int64_t g, int64_t end, int64_t groups) {
    if (end < groups) return panel + Format::lines_at(end) - Format::lines_at(g);
    return (next ? next : panel) + Format::lines_at(0) - Format::lines_at(g);
  }

  // --- few rows: nibbles straight from the panel ---
  template <Vector V>
  static void stream(const LinearTile& t, int64_t groups) {
    const int64_t chunk = t.rows <= V::kRows ? groups : kChunk;
    const int64_t bytes = t.weight.panel_bytes;
    // A panel without a second one, which few weights have, is multiplied row by row.
    for_panels<2>(t.panels, [&](int64_t p, auto count) {
      const uint8_t* panel = t.panel + p * bytes;
      const uint8_t* next = p + 2 < t.panels ? panel + 2 * bytes : t.next ? t.next : panel;
      for (int64_t g = 0; g < groups; g += chunk)
        balanced_blocks<count.value == 1 ? 1 : V::kRows>(int(t.rows), [&](int m, auto rows) {
          nibbles<V, rows.value, count.value>(t, panel, next, m, g, min_of(g + chunk, groups),
                                              t.cur + m * kTileWidth + p * kLanes);
        });
    });
  }

  template <Vector V, int M, int P>
  static INFENG_NOINLINE void nibbles(const LinearTile& t, const uint8_t* panel, const uint8_t* next, int64_t row,
                                      int64_t g0, int64_t g1, float* cur) {
    using F = typename V::F;
    const int64_t bytes = t.weight.panel_bytes, distance = Format::lines_at(kChunk) - Format::lines_at(0);
    const IntRows<V, M> in(t.in, t.row + row);
    F out[M][P];
    INFENG_EACH (m, M)
      INFENG_EACH (p, P) out[m][p] = g0 == 0 ? V::zero() : V::load(cur + m * kTileWidth + p * kLanes);
    for (int64_t g = g0; g < g1; ++g) {
      const int64_t lines = Format::lines_at(g);
      // Fetches the same panels one chunk further on, or the next pair of panels at their end. One line is fetched for
      // each line that is used: a burst would occupy all fill buffers and delay the lines that are needed now.
      const uint8_t* ahead = (lines + distance < bytes ? panel : next - bytes) + lines + distance + Format::kFetchFrom;
      t.feed.template step<V>();
      INFENG_EACH (s, kSteps) {
        const int8_t* x[M];
        int32_t sum[M];
        const uint8_t* w[P];
        typename V::I acc[M][P];
        F scale[P];
        in.template step<kSteps>(g, s, x, sum);
        INFENG_EACH (p, P) w[p] = panel + p * bytes + lines + s * Format::kStepLines * kLine;
        V::template dot_nibbles<Format::kStepLines, M, P>(acc, w, x, sum, [&](int l) INFENG_INLINE_LAMBDA {
          const int at = s * Format::kStepLines + l;
          INFENG_EACH (p, P) V::prefetch(ahead + p * bytes + at * kLine);
          if (at == 0)
            INFENG_EACH (p, P) V::prefetch(ahead + p * bytes + (Format::kFetchLines - 1) * kLine);
        });
        INFENG_EACH (p, P) scale[p] = Format::template scale<V>(panel + p * bytes, g, s);
        INFENG_EACH (m, M) {
          const F xscale = V::set(in.scale[m][g]);
          INFENG_EACH (p, P) out[m][p] = V::fma(V::to_float(acc[m][p]), V::mul(scale[p], xscale), out[m][p]);
        }
      }
    }
    INFENG_EACH (m, M)
      INFENG_EACH (p, P) V::store(cur + m * kTileWidth + p * kLanes, out[m][p]);
  }

  // --- many rows: plain lines ---
  template <Vector V>
  static INFENG_NOINLINE Lines unpack(const uint8_t* panel, int64_t bytes, int panels, int64_t g0, int64_t g1,
                                      uint8_t* scratch) {
    constexpr int L = Format::kStepLines;
    uint8_t* scales = scratch + kPanels * kPanelLines;
    for (int p = 0; p < panels; ++p, panel += bytes) {
      uint8_t* out = scratch + p * kPanelLines;
      float* scale = (float*)(scales + p * kPanelScales);
      for (int64_t g = g0; g < g1; ++g)
        for (int s = 0; s < kSteps; ++s, out += 2 * L * kLine, scale += kLanes) {
          const uint8_t* lines = panel + Format::lines_at(g) + s * L * kLine;
          INFENG_EACH (l, L) V::unpack_nibbles(lines + l * kLine, out + l * kLine, out + (l + L) * kLine);
          V::store(scale, Format::template scale<V>(panel, g, s));
        }
    }
    return {scratch, kPanelLines, scales, kPanelScales};
  }

  // Adds groups [g0, g1) of `source` to cur for M rows and `panels` panels, S at a time; if `fetches`, fetches the
  // lines at `ahead`: of as many panels of an int8 weight, or of one panel of nibbles.
  template <Vector V, int M, int S>
  static INFENG_NOINLINE void block(const LinearTile& t, const Lines& source, int panels, int64_t row, int64_t g0,
                                    int64_t g1, float* cur, const uint8_t* ahead, bool fetches) {
    constexpr int kStepLines = kLanes / kSteps;
    const IntRows<V, M> in(t.in, t.row + row);
    const uint8_t* lines = source.lines;
    const uint8_t* scales = source.scales;
    const int64_t bytes = t.weight.panel_bytes;
    // Bytes between the lines of two groups: an int8 weight may have scales there.
    const int64_t between = kNibbles ? 0 : Format::lines_at(1) - Format::lines_at(0) - kGroup * kLanes;
    for (int64_t g = g0; g < g1; ++g, lines += between) {
      t.feed.template step<V>();
      for (int s = 0; s < kSteps; ++s) {
        const int8_t* x[M];
        int32_t sum[M];
        in.template step<kSteps>(g, s, x, sum);
        const uint8_t* from = lines;
        const uint8_t* scale = scales;
        const uint8_t* fetch = ahead + Format::lines_at(g) + Format::kFetchFrom;
        float* to = cur;
        bool fetches_now = fetches;
        INFENG_ROLLED
        for (int p = 0; p < panels; p += S, to += S * kLanes) {
          const uint8_t* w[S];
          typename V::I acc[M][S];
          INFENG_EACH (i, S) w[i] = from + i * source.panel_stride;
          V::template dot_lines<Format::kBits, M, S>(acc, w, kStepLines, x, sum, [&](int l) INFENG_INLINE_LAMBDA {
            constexpr int kFetched = kNibbles ? 1 : S;  // panels
            const int at = s * kStepLines + l;
            if (at < Format::kFetchLines && fetches_now)
              INFENG_EACH (i, kFetched) V::prefetch(fetch + i * bytes + at * kLine);
            if (Format::kFetchLines > kLanes && at == 0 && fetches_now)
              INFENG_EACH (i, kFetched) V::prefetch(fetch + i * bytes + kLanes * kLine);
          });
          add<V, M, S>(t, in, acc, scale, source.scale_panel_stride, g, s, to);
          from += S * source.panel_stride;
          scale += S * source.scale_panel_stride;
          if constexpr (kNibbles)
            fetches_now = false;
          else
            fetch += S * bytes;
        }
        lines += kStepLines * kLine;
        if constexpr (kNibbles) scales += kLine;
      }
    }
  }

  // Adds the sums of M rows and S panels over step s of group g to `cur`.
  template <Vector V, int M, int S>
  static INFENG_INLINE void add(const LinearTile& t, const IntRows<V, M>& in, const typename V::I (&acc)[M][S],
                                const uint8_t* scales, int64_t stride, int64_t g, int s, float* cur) {
    if constexpr (kReadsRows)
      if (sums_rows(t)) {
        INFENG_EACH (m, M)
          INFENG_EACH (p, S) {
            float* c = cur + m * kTileWidth + p * kLanes;
            V::store_i32(c, V::iadd(V::load_i32(c), acc[m][p]));
          }
        return;
      }
    typename V::F scale[S];
    INFENG_EACH (p, S) {
      if constexpr (kNibbles)
        scale[p] = V::load((const float*)(scales + p * stride));
      else
        scale[p] = Format::template scale<V>(scales + p * stride, g, s);
    }
    INFENG_EACH (m, M) {
      const auto xscale = V::set(in.scale[m][g]);
      INFENG_EACH (p, S) {
        float* c = cur + m * kTileWidth + p * kLanes;
        V::store(c, V::fma(V::to_float(acc[m][p]), V::mul(scale[p], xscale), V::load(c)));
      }
    }
  }
};

template <Vector V, class Format>
using LinearInt = Linear<V, IntCore<Format>>;

}  // namespace
}  // namespace infeng
#endif  // INFENG_OPS_LINEAR_INT_H
