// linear over weights with integer sub-scales and int8 activations. Per group of the activation, 64, 128 or 256 k,
// ascending:
//   acc = sum over the group of q_x[k] * s (u - z)                  exact; each 32 k have an s and a z
//   out = fma(float(acc), xscale[m][g], out)
// and at the end out = out * d[n]. If a row has one scale, out is an integer sum until all of k is added. The zero
// points are subtracted with the sums of x over 32 k, which the core computes once for a block of rows. As in
// linear_int.h, few rows use the weights as they stream in, and many rows unpack a chunk of four panels to scratch:
// units with their sub-scales, or biased bytes of s (u - z) on CPUs that add products of bytes directly
// (`BiasedLines`), whose sums stay in registers over a group of the activation. SPDX-License-Identifier: Apache-2.0
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
  static constexpr uint32_t kWidestActivation = INFENG_ACT_INT8_G256;
  static constexpr bool kReadsRows = true;
  static constexpr int kBits = Format::kBits;
  static constexpr int64_t kChunk = 8;     // groups of a pass over packed lines, and of the prefetch distance
  static constexpr int64_t kUnpacked = 4;  // groups of a chunk in scratch, half of a 32 KB L1 cache
  static constexpr int kPanels = 4;        // of a chunk in scratch
  static constexpr int64_t kLines = kGroup * kLanes;  // bytes of a panel's group in scratch
  static_assert(kChunk * kGroup % kWidestGroup == 0 && kUnpacked * kGroup % kWidestGroup == 0);
  static constexpr int64_t kScratch = kPanels * kUnpacked * (kLines + int64_t(sizeof(SubScales)));

  static constexpr int64_t scratch(int64_t k) {
    return kScratch + kRowBlock * ceil_div(k, kGroup) * int64_t(sizeof(int32_t) + sizeof(float));
  }

  template <SubScaled V>
  static void multiply(const LinearTile& t) {
    const int64_t groups = ceil_div(t.weight.k, kGroup);
    const bool few = t.rows <= V::kPackedMost;
    clear<V>(t);
    if (sums_rows(t)) {
      few ? stream<V, Integers<V>>(t, groups) : blocks<V>(t, groups);
      return scale_sums<V>(t);
    }
    if (!few)
      blocks<V>(t, groups);
    else if (t.in.group == kGroup)
      stream<V, Floats<V>>(t, groups);
    else
      stream<V, Integers<V>>(t, groups);
    scale_outputs<V>(t);
  }

 private:
  // Behind the lines in scratch, each group has for all rows the sums that subtract the zero points, and the scales, so
  // that values of rows that are multiplied together are adjacent. The sums are V::minus_halves of each 64 k for units.
  // For biased lines they are -V::kBias times the sum over a group of the activation where it begins, and else 0.
  static INFENG_INLINE int32_t* minus_of(const LinearTile& t) { return (int32_t*)(t.scratch + kScratch); }
  static INFENG_INLINE float* scales_of(const LinearTile& t, int64_t groups) {
    return (float*)(minus_of(t) + t.rows * groups);
  }
  template <SubScaled V, bool Biased>
  static INFENG_NOINLINE void factor(const LinearTile& t, int64_t groups) {
    int32_t* minus = minus_of(t);
    float* scales = scales_of(t, groups);
    for (int64_t m = 0; m < t.rows; ++m) {
      const int8_t* x = row_of<int8_t>(t.in.q, t.row + m);
      const int32_t* sum = row_of<int32_t>(t.in.sum, t.row + m);
      const float* scale = row_of<float>(t.in.scale, t.row + m);
      int64_t first = 0;  // 64 k of the activation's group
      for (int64_t g = 0; g < groups; ++g) {
        scales[g * t.rows + m] = scale[g];
        minus[g * t.rows + m] = Biased ? 0 : V::minus_halves(x + g * kGroup, sum[g]);
        if (begins(t, g)) first = g;
        if constexpr (Biased) minus[first * t.rows + m] -= V::kBias * sum[g];
      }
    }
  }

  // Whether 64 k begin or end a group of the activation. Passes and chunks, except the last, are whole groups of it, or
  // parts of a row.
  static INFENG_INLINE bool begins(const LinearTile& t, int64_t g) { return (g * kGroup & (t.in.group - 1)) == 0; }
  static INFENG_INLINE bool ends(const LinearTile& t, int64_t g, int64_t groups) {
    return begins(t, g + 1) || g + 1 == groups;
  }

  // Rows [row, row + M) of the tile's activation in one group after the other.
  template <int M>
  struct Rows {
    const int8_t* x[M];
    const int32_t* minus;
    const float* scale;
    int64_t stride;

    INFENG_INLINE Rows(const LinearTile& t, int64_t row, int64_t g, int64_t groups) : stride(t.rows) {
      INFENG_EACH (m, M) x[m] = row_of<int8_t>(t.in.q, t.row + row + m) + g * kGroup;
      minus = minus_of(t) + g * stride + row;
      scale = scales_of(t, groups) + g * stride + row;
    }
    INFENG_INLINE void advance() {
      INFENG_EACH (m, M) x[m] += kGroup;
      minus += stride;
      scale += stride;
    }
  };

  // The sub-scales of both groups of a superblock.
  template <SubScaled V>
  static INFENG_INLINE void sub_scales(const uint8_t* line, SubScales* out, int64_t stride) {
    if constexpr (requires { V::template sub_scales<kBits>(line, *out, *out); }) {
      V::template sub_scales<kBits>(line, out[0], out[stride]);
    } else {
      V::template sub_scales<kBits>(line, 0, out[0]);
      V::template sub_scales<kBits>(line, 1, out[stride]);
    }
  }

  // --- few rows: straight from the panel ---
  template <SubScaled V, class Sums>
  static void stream(const LinearTile& t, int64_t groups) {
    if (t.fresh) factor<V, false>(t, groups);
    const int64_t chunk = t.rows <= V::kPackedRows ? groups : kChunk;
    const int64_t bytes = t.weight.panel_bytes;
    // A panel without a second one, which few weights have, is multiplied row by row.
    for_panels<2>(t.panels, [&](int64_t p, auto count) {
      const uint8_t* panel = t.panel + p * bytes;
      const uint8_t* next = p + 2 < t.panels ? panel + 2 * bytes : t.next ? t.next : panel;
      for (int64_t g = 0; g < groups; g += chunk)
        balanced_blocks<count.value == 1 ? 1 : V::kPackedRows>(int(t.rows), [&](int m, auto rows) {
          packed<V, Sums, rows.value, count.value>(t, panel, next, m, g, min_of(g + chunk, groups), groups,
                                                   t.cur + m * kTileWidth + p * kLanes);
        });
    });
  }

  // Adds groups [g0, g1) to cur; g0 is even. Registers hold what `cur` holds, or the integers of a wide group.
  template <SubScaled V, class Sums, int M, int P>
  static INFENG_NOINLINE void packed(const LinearTile& t, const uint8_t* panel, const uint8_t* next, int64_t row,
                                     int64_t g0, int64_t g1, int64_t groups, float* cur) {
    constexpr int S = V::packed_panels(M) < P ? V::packed_panels(M) : P;  // panels of one dot
    const int64_t bytes = t.weight.panel_bytes, distance = Format::lines_at(kChunk) - Format::lines_at(0);
    const bool wide = Sums::kExact && !sums_rows(t);
    Rows<M> in(t, row, g0, groups);
    typename Sums::Sum sum[P / S][M][S];
    INFENG_EACH (p, P)
      INFENG_EACH (m, M)
        sum[p / S][m][p % S] = wide || g0 == 0 ? Sums::zero() : Sums::load(cur + m * kTileWidth + p * kLanes);
    int64_t lines = Format::lines_at(g0);
    for (int64_t left = g1 - g0; left > 0; left -= 2, lines += kLine) {
      SubScales scales[2][P];
      INFENG_EACH (p, P) sub_scales<V>(panel + p * bytes + lines - kLine, scales[0] + p, P);
      for (int h = 0; h < 2 && h < left; ++h, lines += 2 * kBits * kLine, in.advance()) {
        // As in linear_int.h: one line is fetched for each that is used.
        const uint8_t* ahead =
            (lines + distance < bytes ? panel : next - bytes) + lines + distance + Format::kFetchFrom;
        t.feed.template step<V>();
        // Dots of one panel are copied for each panel only if floats are kept: around integers, one copy is faster.
        constexpr int kCopies = Sums::kExact ? 1 : P / S;
        int turns = P / S;
        if constexpr (kCopies < P / S) __asm__("" : "+r"(turns));
        INFENG_ROLLED
        for (int from = 0; from < turns; from += kCopies)
          INFENG_EACH (copy, kCopies) {
            const int turn = from + copy;
            const int first = turn * S;
            const uint8_t* w[S];
            const SubScales* s[S];
            typename V::I acc[M][S];
            INFENG_EACH (p, S) {
              w[p] = panel + (first + p) * bytes + lines;
              s[p] = scales[h] + first + p;
            }
            V::template dot_packed<kBits, M, S>(acc, w, s, in.x, in.minus, [&](int l) INFENG_INLINE_LAMBDA {
              INFENG_EACH (p, S) {
                const uint8_t* line = ahead + (first + p) * bytes;
                V::prefetch(line + l * kLine);
                if (l == 0) V::prefetch(line + (Format::kFetchLines - 1) * kLine);
              }
            });
            INFENG_EACH (m, M) {
              const auto xscale = V::set(in.scale[m]);
              INFENG_EACH (p, S) sum[turn][m][p] = Sums::add(sum[turn][m][p], acc[m][p], xscale);
            }
            if constexpr (Sums::kExact)
              if (wide && ends(t, g1 - left + h, groups)) {
                put<V, M, S>(sum[turn], in.scale, cur + first * kLanes, false);
                INFENG_EACH (m, M)
                  INFENG_EACH (p, S) sum[turn][m][p] = Sums::zero();
              }
          }
      }
    }
    if (!wide)
      INFENG_EACH (p, P)
        INFENG_EACH (m, M) Sums::store(cur + m * kTileWidth + p * kLanes, sum[p / S][m][p % S]);
  }

  // --- many rows: unpacked ---
  // A chunk's groups of one panel.
  struct Unpacked {
    uint8_t lines[kUnpacked][kLines];
    SubScales scales[kUnpacked];
  };
  static_assert(kPanels * sizeof(Unpacked) == kScratch && kUnpacked % 2 == 0);

  template <SubScaled V>
  static constexpr int panels_at_once(int panels) {
    if constexpr (ScaledLines<V>)
      return V::kScaledPanels < panels ? V::kScaledPanels : panels;
    else
      return panels;
  }

  // Fetches the next chunk, panel by panel, while the blocks of rows multiply this one. Each block fetches equally many
  // lines in each of its groups, because a core waits if it has too many fetches in flight.
  struct Fetch {
    const uint8_t* panel;
    int64_t bytes;  // from panel to panel
    int of_panel;   // lines of a panel
    int each;       // lines of a group
    int line = 0;   // of the panel, the next one

    // The lines that one group fetches. `left` of them end a panel, the others begin the next one.
    struct Lines {
      const uint8_t* at;
      const uint8_t* behind;
      int left;
      int count;

      template <class V>
      INFENG_INLINE void fetch(int l) const {
        if (l < count) V::prefetch((l < left ? at : behind) + l * kLine);
      }
    };

    INFENG_INLINE Lines next() {
      const int left = of_panel - line;
      const Lines lines{panel + line * kLine, panel + bytes - left * kLine, left, each};
      line += each;
      if (line >= of_panel) {
        line -= of_panel;
        panel += bytes;
      }
      return lines;
    }
  };

  template <SubScaled V>
  static void blocks(const LinearTile& t, int64_t groups) {
    constexpr int kMost = V::kScaledRows, kLeast = smallest_block(kMost, V::kPackedMost + 1);
    const int64_t bytes = t.weight.panel_bytes, turns = ceil_div(t.rows, kMost);
    if (t.fresh) factor<V, BiasedLines<V>>(t, groups);
    for_panels<kPanels>(t.panels, [&](int64_t p, auto count) {
      constexpr int P = count.value, S = panels_at_once<V>(P);
      const uint8_t* panel = t.panel + p * bytes;
      const uint8_t* next = p + P < t.panels ? panel + P * bytes : t.next;
      for (int64_t g = 0; g < groups; g += kUnpacked) {
        const int64_t end = min_of(g + kUnpacked, groups);
        const uint8_t* ahead =  // the next chunk
            end < groups ? panel + Format::lines_at(end) : (next ? next : panel) + Format::lines_at(0);
        unpack<V>(t, panel, P, g, end);
        const int lines = int(Format::lines_at(end) - Format::lines_at(g)) / kLine;
        Fetch fetch{ahead + Format::kFetchFrom, bytes, lines, int(ceil_div(P * lines, turns * (end - g)))};
        balanced_blocks<kMost, kLeast>(int(t.rows), [&](int m, auto rows) {
          constexpr int M = rows.value;
          block<V, M, S>(t, P, m, g, end, groups, t.cur + m * kTileWidth + p * kLanes, fetch);
        });
      }
    });
  }

  template <SubScaled V>
  static INFENG_NOINLINE void unpack(const LinearTile& t, const uint8_t* panel, int panels, int64_t g0, int64_t g1) {
    Unpacked* to = (Unpacked*)t.scratch;
    for (int p = 0; p < panels; ++p, ++to, panel += t.weight.panel_bytes)
      for (int64_t g = g0; g < g1; ++g) {
        if (g % 2 == 0) sub_scales<V>(panel + Format::scales_at(g), to->scales + (g - g0), 1);
        V::template unpack_lines<kBits>(panel + Format::lines_at(g), to->scales[g - g0], to->lines[g - g0]);
      }
  }

  // Adds unpacked groups [g0, g1) to cur for M rows and `panels` panels, S at a time.
  template <ScaledLines V, int M, int S>
  static INFENG_NOINLINE void block(const LinearTile& t, int panels, int64_t row, int64_t g0, int64_t g1,
                                    int64_t groups, float* cur, Fetch& fetch) {
    const bool exact = sums_rows(t);
    Rows<M> in(t, row, g0, groups);
    Totals<V, M> totals;
    for (int64_t g = g0; g < g1; ++g, in.advance()) {
      const Unpacked* from = (const Unpacked*)t.scratch;
      const auto lines = fetch.next();
      const int share = int(ceil_div(lines.count * S, panels));  // that S panels fetch
      int fetched = 0;
      float* to = cur;
      totals.next = totals.of;
      totals.begins = exact || begins(t, g);
      totals.ends = exact || ends(t, g, groups);
      t.feed.template step<V>();
      INFENG_ROLLED
      for (int p = 0; p < panels; p += S, from += S, to += S * kLanes, fetched += share)
        add<V, M, S>(in, from, g - g0, to, totals, exact, [&](int l) INFENG_INLINE_LAMBDA {
          if (l < share) lines.template fetch<V>(fetched + l);
        });
    }
  }

  // The same over biased lines; S is all panels.
  template <BiasedLines V, int M, int S>
  static INFENG_NOINLINE void block(const LinearTile& t, int, int64_t row, int64_t g0, int64_t g1, int64_t groups,
                                    float* cur, Fetch& fetch) {
    const Unpacked* from = (const Unpacked*)t.scratch;
    const int64_t wide = t.in.group / kGroup;
    Rows<M> in(t, row, g0, groups);
    for (int64_t g = g0; g < g1;) {
      const float* scale = in.scale;
      typename V::I acc[M][S];
      INFENG_EACH (m, M)
        INFENG_EACH (p, S) acc[m][p] = V::iset(in.minus[m]);
      for (const int64_t end = min_of(g + wide, g1); g < end; ++g, in.advance()) {
        const uint8_t* w[S];
        const auto lines = fetch.next();
        INFENG_EACH (p, S) w[p] = from[p].lines[g - g0];
        t.feed.template step<V>();
        V::template add_biased<M, S>(acc, w, in.x, [&](int l) INFENG_INLINE_LAMBDA {
          lines.template fetch<V>(l);
          lines.template fetch<V>(l + 16);
        });
      }
      put<V, M, S>(acc, scale, cur, sums_rows(t));
    }
  }

  // The sums of the wide group so far, panel by panel. They stay in memory, because no registers are free.
  template <ScaledLines V, int M>
  struct Totals {
    typename V::I of[kPanels * M];
    typename V::I* next;
    bool begins;  // a group of the activation
    bool ends;

    INFENG_INLINE Totals() { asm volatile("" : : "r"(of) : "memory"); }
  };

  // Adds a group of S panels to `to` once the activation's group is complete.
  template <ScaledLines V, int M, int S, class Each>
  static INFENG_INLINE void add(const Rows<M>& in, const Unpacked* from, int64_t g, float* to, Totals<V, M>& totals,
                                bool exact, const Each& each) {
    const uint8_t* w[S];
    const SubScales* s[S];
    typename V::I acc[M][S];
    INFENG_EACH (p, S) {
      w[p] = from[p].lines[g];
      s[p] = from[p].scales + g;
    }
    V::template dot_scaled<kBits, M, S>(acc, w, s, in.x, in.minus, each);
    typename V::I* total = totals.next;
    totals.next += M * S;
    if (!totals.begins)
      INFENG_EACH (m, M)
        INFENG_EACH (p, S) acc[m][p] = V::iadd(total[m * S + p], acc[m][p]);
    if (!totals.ends) {
      INFENG_EACH (m, M)
        INFENG_EACH (p, S) total[m * S + p] = acc[m][p];
      return;
    }
    put<V, M, S>(acc, in.scale, to, exact);
  }

  // Adds the sums of M rows and S panels over a group of the activation to `cur`, which holds integers if `exact`.
  template <SubScaled V, int M, int S>
  static INFENG_INLINE void put(const typename V::I (&acc)[M][S], const float* scale, float* cur, bool exact) {
    if (exact)
      put_sums<V, Integers<V>, M, S>(acc, scale, cur);
    else
      put_sums<V, Floats<V>, M, S>(acc, scale, cur);
  }
  template <SubScaled V, class Sums, int M, int S>
  static INFENG_INLINE void put_sums(const typename V::I (&acc)[M][S], const float* scale, float* cur) {
    INFENG_EACH (m, M) {
      const auto xscale = V::set(scale[m]);
      INFENG_EACH (p, S) {
        float* c = cur + m * kTileWidth + p * kLanes;
        Sums::store(c, Sums::add(Sums::load(c), acc[m][p], xscale));
      }
    }
  }
};

template <SubScaled V, class Format>
using LinearP32 = Linear<V, P32Core<Format>>;

}  // namespace
}  // namespace infeng
#endif  // INFENG_OPS_LINEAR_P32_H
