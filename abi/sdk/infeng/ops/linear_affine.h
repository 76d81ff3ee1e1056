// linear over weights with sub-scales and minima (ops/weights.h, Affine) and int8 activations. Per superblock,
// ascending, a = b = +0, then per group of 64 k:
//   acc = sum over the group of q_x[k] * s u                        exact; each 32 k have an s
//   a = fma(float(acc), xscale[m][g], a)
//   b = fma(float(t), y[m][h], b)                                   for both halves h of the group, where
//   y[m][h] = float(-(sum of q_x over the half)) * xscale[m][g]     rounded; the core computes it once per call
// and at the superblock's end out = fma(d, a, out), out = fma(e, b, out). As in linear_int.h, few rows use the weights
// as they stream in, and many rows unpack a chunk of four panels and its scales to scratch. `Dots` computes acc.
// SPDX-License-Identifier: Apache-2.0
#ifndef INFENG_OPS_LINEAR_AFFINE_H
#define INFENG_OPS_LINEAR_AFFINE_H

#include <infeng/ops/linear.h>
#include <infeng/ops/weights.h>

namespace infeng {
namespace {

// Byte `at` of every output in a line of sub-scales, widened; simd/affine_*.h have faster versions.
template <Vector V>
struct AffineBytes {
  static INFENG_INLINE typename V::F take(const uint8_t* line, int at) {
    float bytes[kLanes];
    INFENG_EACH (n, kLanes) bytes[n] = float(line[4 * n + at]);
    return V::load(bytes);
  }
};

// float(acc) of every output from the vocabulary's dots over 32 k without a zero point. A sum over 32 k has 16 bits and
// s has 8, so both products are exact, and their sum is rounded once, like the conversion of acc.
template <Vector V, class Bytes = AffineBytes<V>>
struct AffineDots {
  using Vectors = V;
  using F = typename V::F;
  static constexpr int kRows = V::kRows;            // most rows of one dot over packed lines
  static constexpr int kBlockRows = V::kBlockRows;  // the same over unpacked lines

  // The sub-scales of 64 k of 16 outputs.
  struct alignas(kLine) Scales {
    float s[2][kLanes];  // of the first and the last 32 k
    float t[2][kLanes];
  };
  static INFENG_INLINE void read(const uint8_t* line, Scales& out) {
    INFENG_EACH (h, 2) {
      V::store(out.s[h], Bytes::take(line, h));
      V::store(out.t[h], Bytes::take(line, 2 + h));
    }
  }

  // From 8 lines of nibbles; calls each(l) for every l below 8, evenly.
  template <int M, int P, class Each>
  static INFENG_INLINE void packed(F (&acc)[M][P], const uint8_t* const (&w)[P], const Scales* const (&scales)[P],
                                   const int8_t* const (&x)[M], const Each& each) {
    halves(acc, scales, x, [&](auto& sums, const int8_t* const(&inputs)[M], int h) INFENG_INLINE_LAMBDA {
      const int32_t none[M] = {};
      const uint8_t* lines[P];
      INFENG_EACH (p, P) lines[p] = w[p] + h * (4 * kLine);
      V::template dot_nibbles<4, M, P>(sums, lines, inputs, none, [&](int l) INFENG_INLINE_LAMBDA { each(4 * h + l); });
    });
  }
  // From 16 lines of bytes; calls each(l) for every l below 16.
  template <int M, int P, class Each>
  static INFENG_INLINE void unpacked(F (&acc)[M][P], const uint8_t* const (&w)[P], const Scales* const (&scales)[P],
                                     const int8_t* const (&x)[M], const Each& each) {
    halves(acc, scales, x, [&](auto& sums, const int8_t* const(&inputs)[M], int h) INFENG_INLINE_LAMBDA {
      const int32_t none[M] = {};
      const uint8_t* lines[P];
      INFENG_EACH (p, P) lines[p] = w[p] + h * (8 * kLine);
      V::template dot_lines<4, M, P>(sums, lines, 8, inputs, none,
                                     [&](int l) INFENG_INLINE_LAMBDA { each(8 * h + l); });
    });
  }

 private:
  template <int M, int P, class Dot>
  static INFENG_INLINE void halves(F (&acc)[M][P], const Scales* const (&scales)[P], const int8_t* const (&x)[M],
                                   const Dot& dot) {
    INFENG_EACH (h, 2) {
      typename V::I sums[M][P];
      const int8_t* inputs[M];
      INFENG_EACH (m, M) inputs[m] = x[m] + 32 * h;
      dot(sums, inputs, h);
      INFENG_EACH (p, P) {
        const F s = V::load(scales[p]->s[h]);
        INFENG_EACH (m, M)
          acc[m][p] = h == 0 ? V::mul(V::to_float(sums[m][p]), s) : V::fma(V::to_float(sums[m][p]), s, acc[m][p]);
      }
    }
  }
};

// Multiplies a tile. The superblock's length is a run-time value, so that the formats share the code.
template <class Dots>
struct AffineTile {
  using V = typename Dots::Vectors;
  using F = typename V::F;
  using Scales = typename Dots::Scales;
  static constexpr int64_t kChunk = 8;  // groups, of whole superblocks
  static constexpr int kPanels = 4;
  static constexpr int64_t kPanelLines = kChunk * kGroup * kLanes;
  static constexpr int64_t kScratch = kPanels * (kPanelLines + kChunk * int64_t(sizeof(Scales)));

  static void multiply(const LinearTile& t, AffinePanel at) {
    const int64_t groups = ceil_div(t.weight.k, kGroup);
    if (t.fresh) scale_sums(t, groups);
    // Three passes over packed lines cost as much as unpacking them once.
    if (t.rows <= 3 * Dots::kRows)
      stream(t, at, groups);
    else
      blocks(t, at, groups);
  }

 private:
  static constexpr int kFetchLines = 9;  // lines of memory per group, beginning with its line of scales

  // y of each row, group and half, behind the lines in scratch.
  static INFENG_INLINE float* sums_of(const LinearTile& t, int64_t row, int64_t groups) {
    return (float*)(t.scratch + kScratch) + row * groups * 2;
  }
  static INFENG_NOINLINE void scale_sums(const LinearTile& t, int64_t groups) {
    for (int64_t m = 0; m < t.rows; ++m) {
      const int8_t* q = row_of<int8_t>(t.in.q, t.row + m);
      const float* scale = row_of<float>(t.in.scale, t.row + m);
      const int32_t* sum = row_of<int32_t>(t.in.sum, t.row + m);
      float* y = sums_of(t, m, groups);
      for (int64_t g = 0; g < groups; ++g) {
        const int32_t first = V::sum_i8(q + g * kGroup, 32);
        y[2 * g] = float(-first) * scale[g];
        y[2 * g + 1] = float(first - sum[g]) * scale[g];
      }
    }
  }

  // Rows [row, row + M) of the tile's activation.
  template <int M>
  struct Rows {
    const int8_t* q[M];
    const float* scale[M];
    const float* y[M];

    INFENG_INLINE Rows(const LinearTile& t, int64_t row, int64_t groups) {
      INFENG_EACH (m, M) {
        q[m] = row_of<int8_t>(t.in.q, t.row + row + m);
        scale[m] = row_of<float>(t.in.scale, t.row + row + m);
        y[m] = sums_of(t, row + m, groups);
      }
    }
    INFENG_INLINE void at(int64_t g, const int8_t* (&x)[M]) const {
      INFENG_EACH (m, M) x[m] = q[m] + g * kGroup;
    }
  };

  // The sums of a superblock so far.
  template <int M, int P>
  struct Sums {
    F a[M][P];
    F b[M][P];

    INFENG_INLINE void clear() {
      INFENG_EACH (m, M)
        INFENG_EACH (p, P) a[m][p] = b[m][p] = V::zero();
    }
    INFENG_INLINE void add(const F (&acc)[M][P], const Scales* const (&scales)[P], const Rows<M>& in, int64_t g) {
      INFENG_EACH (m, M) {
        const F scale = V::set(in.scale[m][g]), first = V::set(in.y[m][2 * g]), last = V::set(in.y[m][2 * g + 1]);
        INFENG_EACH (p, P) {
          a[m][p] = V::fma(acc[m][p], scale, a[m][p]);
          b[m][p] = V::fma(V::load(scales[p]->t[0]), first, b[m][p]);
          b[m][p] = V::fma(V::load(scales[p]->t[1]), last, b[m][p]);
        }
      }
    }
    // Adds the superblock that begins at `block` of panel p to `before`.
    INFENG_INLINE F out(const uint8_t* block, int m, int p, F before) const {
      const uint16_t* halves = (const uint16_t*)block;
      return V::fma(V::load_f16(halves + kLanes), b[m][p], V::fma(V::load_f16(halves), a[m][p], before));
    }
  };

  // --- few rows: straight from the panel ---
  static void stream(const LinearTile& t, AffinePanel at, int64_t groups) {
    const int64_t chunk = t.rows <= Dots::kRows ? groups : kChunk;
    const int64_t bytes = t.weight.panel_bytes;
    // A panel without a second one, which few weights have, is multiplied row by row.
    for_panels<2>(t.panels, [&](int64_t p, auto count) {
      const uint8_t* panel = t.panel + p * bytes;
      const uint8_t* next = p + 2 < t.panels ? panel + 2 * bytes : t.next ? t.next : panel;
      for (int64_t g = 0; g < groups; g += chunk)
        balanced_blocks<count.value == 1 ? 1 : Dots::kRows>(int(t.rows), [&](int m, auto rows) {
          packed<rows.value, count.value>(t, at, panel, next, m, g, min_of(g + chunk, groups), groups,
                                          t.cur + m * kTileWidth + p * kLanes);
        });
    });
  }

  template <int M, int P>
  static INFENG_NOINLINE void packed(const LinearTile& t, AffinePanel at, const uint8_t* panel, const uint8_t* next,
                                     int64_t row, int64_t g0, int64_t g1, int64_t groups, float* cur) {
    const int64_t bytes = t.weight.panel_bytes, distance = at.lines_at(kChunk) - at.lines_at(0);
    const Rows<M> in(t, row, groups);
    F out[M][P];
    Sums<M, P> sums;
    sums.clear();
    INFENG_EACH (m, M)
      INFENG_EACH (p, P) out[m][p] = g0 == 0 ? V::zero() : V::load(cur + m * kTileWidth + p * kLanes);
    for (int64_t g = g0; g < g1; ++g) {
      const int64_t lines = at.lines_at(g);
      // As in linear_int.h: one line is fetched for each that is used.
      const uint8_t* ahead = (lines + distance < bytes ? panel : next - bytes) + lines + distance - kLine;
      t.feed.template step<V>();
      if (at.begins(g))
        INFENG_EACH (p, P) V::prefetch(ahead + p * bytes - kLine);
      const int8_t* x[M];
      const uint8_t* w[P];
      Scales read[P];
      const Scales* scales[P];
      F acc[M][P];
      in.at(g, x);
      INFENG_EACH (p, P) {
        w[p] = panel + p * bytes + lines;
        Dots::read(panel + p * bytes + at.scales_at(g), read[p]);
        scales[p] = read + p;
      }
      Dots::template packed<M, P>(acc, w, scales, x, [&](int l) INFENG_INLINE_LAMBDA {
        INFENG_EACH (p, P) V::prefetch(ahead + p * bytes + l * kLine);
        if (l == 0)
          INFENG_EACH (p, P) V::prefetch(ahead + p * bytes + (kFetchLines - 1) * kLine);
      });
      sums.add(acc, scales, in, g);
      if (!at.begins(g + 1) && g + 1 < g1) continue;
      INFENG_EACH (m, M)
        INFENG_EACH (p, P) out[m][p] = sums.out(panel + p * bytes + at.superblock_at(g), m, p, out[m][p]);
      sums.clear();
    }
    INFENG_EACH (m, M)
      INFENG_EACH (p, P) V::store(cur + m * kTileWidth + p * kLanes, out[m][p]);
  }

  // --- many rows: unpacked ---
  struct Unpacked {
    const uint8_t* lines;  // kPanelLines from panel to panel
    const Scales* scales;  // kChunk from panel to panel
  };

  static void blocks(const LinearTile& t, AffinePanel at, int64_t groups) {
    const int64_t bytes = t.weight.panel_bytes;
    clear<V>(t);
    for_panels<kPanels>(t.panels, [&](int64_t p, auto count) {
      constexpr int P = count.value;
      const uint8_t* panel = t.panel + p * bytes;
      const uint8_t* next = p + P < t.panels ? panel + P * bytes : t.next;
      for (int64_t g = 0; g < groups; g += kChunk) {
        const int64_t end = min_of(g + kChunk, groups);
        // The base of the next chunk, to which lines_at of this chunk's groups is added.
        const uint8_t* ahead = end < groups ? panel + at.lines_at(end) - at.lines_at(g)
                                            : (next ? next : panel) + at.lines_at(0) - at.lines_at(g);
        const Unpacked source = unpack(panel, bytes, at, P, g, end, t.scratch);
        int fetched = 0;
        balanced_blocks<Dots::kBlockRows>(int(t.rows), [&](int m, auto rows) {
          constexpr int M = rows.value;
          float* cur = t.cur + m * kTileWidth + p * kLanes;
          const bool fetches = fetched < P;
          block<M, P>(t, at, panel, source, m, g, end, groups, cur, fetches ? ahead + fetched * bytes : nullptr);
          fetched += fetches;
        });
      }
    });
  }

  static INFENG_NOINLINE Unpacked unpack(const uint8_t* panel, int64_t bytes, AffinePanel at, int panels, int64_t g0,
                                         int64_t g1, uint8_t* scratch) {
    Scales* scales = (Scales*)(scratch + kPanels * kPanelLines);
    for (int p = 0; p < panels; ++p, panel += bytes)
      for (int64_t g = g0; g < g1; ++g) {
        const uint8_t* lines = panel + at.lines_at(g);
        uint8_t* out = scratch + p * kPanelLines + (g - g0) * (kGroup * kLanes);
        Dots::read(panel + at.scales_at(g), scales[p * kChunk + g - g0]);
        INFENG_EACH (h, 2)
          INFENG_EACH (l, 4)
            V::unpack_nibbles(lines + (4 * h + l) * kLine, out + (8 * h + l) * kLine, out + (8 * h + 4 + l) * kLine);
      }
    return {scratch, scales};
  }

  // Adds groups [g0, g1) of `source` to cur for M rows and P panels; fetches the lines of a panel at `ahead` unless
  // NULL.
  template <int M, int P>
  static INFENG_NOINLINE void block(const LinearTile& t, AffinePanel at, const uint8_t* panel, const Unpacked& source,
                                    int64_t row, int64_t g0, int64_t g1, int64_t groups, float* cur,
                                    const uint8_t* ahead) {
    const Rows<M> in(t, row, groups);
    const int64_t bytes = t.weight.panel_bytes;
    Sums<M, P> sums;
    sums.clear();
    for (int64_t g = g0; g < g1; ++g) {
      t.feed.template step<V>();
      const int8_t* x[M];
      const uint8_t* w[P];
      const Scales* scales[P];
      F acc[M][P];
      in.at(g, x);
      INFENG_EACH (p, P) {
        w[p] = source.lines + p * kPanelLines + (g - g0) * (kGroup * kLanes);
        scales[p] = source.scales + p * kChunk + g - g0;
      }
      Dots::template unpacked<M, P>(acc, w, scales, x, [&](int l) INFENG_INLINE_LAMBDA {
        if (l < kFetchLines && ahead != nullptr) V::prefetch(ahead + at.scales_at(g) + l * kLine);
      });
      sums.add(acc, scales, in, g);
      if (!at.begins(g + 1) && g + 1 < g1) continue;
      INFENG_EACH (m, M)
        INFENG_EACH (p, P) {
          float* c = cur + m * kTileWidth + p * kLanes;
          V::store(c, sums.out(panel + p * bytes + at.superblock_at(g), m, p, V::load(c)));
        }
      sums.clear();
    }
  }
};

template <class Dots, class Format>
struct AffineCore {
  static constexpr uint32_t kFormat = Format::kFormat;
  static constexpr uint32_t kActivation = INFENG_ACT_INT8_G64;

  static constexpr int64_t kScratch = AffineTile<Dots>::kScratch;

  static constexpr int64_t scratch(int64_t k) {
    return kScratch + kRowBlock * ceil_div(k, kGroup) * 2 * int64_t(sizeof(float));
  }
  template <Vector V>
  static void multiply(const LinearTile& t) {
    AffineTile<Dots>::multiply(t, Format::kPanel);
  }
};

template <class Dots, class Format>
using LinearAffine = Linear<typename Dots::Vectors, AffineCore<Dots, Format>>;

}  // namespace
}  // namespace infeng
#endif  // INFENG_OPS_LINEAR_AFFINE_H
