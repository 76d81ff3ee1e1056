// shrink, the A half of LoRA: u[m][u_column + r] = ((x[m] . A[r]) * scaling[r]) * weight, per segment. A is a weight of
// few panels, so an integer A uses the core of its linear. A float A has eight independent chains instead of one: chain
// c adds k = c mod 8 ascending; then c0 + c4 and so on are added, then pairs at distance 2, then 1. A folded panel
// holds the first inputs of its rows in lanes 0 to 7 and the others in lanes 8 to 15. It is multiplied by the first
// inputs and then, from the cache, by the others; each product contributes its own lanes. A tile is a part of one
// segment: one panel if few rows share it, so that reading A takes the time, else up to four panels for a block of
// rows. A folded panel is a tile of its own. Panels with tails of 4 bits are expanded first (tails.h).
// SPDX-License-Identifier: Apache-2.0
#ifndef INFENG_OPS_SHRINK_H
#define INFENG_OPS_SHRINK_H

#include <infeng/ops/linear_float.h>
#include <infeng/ops/linear_int.h>
#include <infeng/ops/tails.h>

namespace infeng {
namespace {

// A core in the sense of linear.h over panels of f32 or bf16.
template <class Panel>
struct ChainCore {
  static constexpr uint32_t kFormat = Panel::kFormat;
  static constexpr uint32_t kActivation = INFENG_ACT_F32;
  static constexpr int64_t kScratch = 0;
  static constexpr int kChains = 8;
  static constexpr int kRows = 3;
  static constexpr int64_t kAhead = 4096;  // bytes

  template <Vector V>
  static void multiply(const LinearTile& t) {
    for (int64_t p = 0; p < t.panels; ++p)
      balanced_blocks<kRows>(int(t.rows), [&](int m, auto rows) { block<V, rows.value>(t, p, m); });
  }

 private:
  template <Vector V, int M>
  static INFENG_NOINLINE void block(const LinearTile& t, int64_t panel, int64_t row) {
    // The chains that stay in registers with M rows; other chains take another pass.
    constexpr int C = V::kColumns > 1 ? kChains : 2;
    alignas(64) float chain[kChains][M][kLanes];
    for (int from = 0; from < kChains; from += C) pass<V, M, C>(t, panel, row, from, chain);
    INFENG_EACH (m, M) {
      const auto at = [&](int c) INFENG_INLINE_LAMBDA { return V::load(chain[c][m]); };
      const auto even = V::add(V::add(at(0), at(4)), V::add(at(2), at(6)));
      const auto odd = V::add(V::add(at(1), at(5)), V::add(at(3), at(7)));
      V::store(t.cur + (row + m) * kTileWidth + panel * kLanes, V::add(even, odd));
    }
  }

  // Computes chains [from, from + C).
  template <Vector V, int M, int C>
  static INFENG_INLINE void pass(const LinearTile& t, int64_t panel, int64_t row, int from,
                                 float (&chain)[kChains][M][kLanes]) {
    using F = typename V::F;
    constexpr int S = Panel::kStep;
    static_assert(C % S == 0, "a line belongs to one pass");
    const uint8_t* w = t.panel + panel * t.weight.panel_bytes + from / S * kLine;
    const int64_t k = t.weight.k;
    const float* x[M];
    F acc[M][C];
    INFENG_EACH (m, M) {
      x[m] = row_of<float>(t.in.x, t.row + row + m) + from;
      INFENG_EACH (c, C) acc[m][c] = V::zero();
    }
    const auto add = [&](int64_t at, int c) INFENG_INLINE_LAMBDA {  // `at` is a multiple of eight
      const F v = Panel::template load<V>(w + c / S * kLine, c % S);
      INFENG_EACH (m, M) acc[m][c] = V::fma(V::set(x[m][at + c]), v, acc[m][c]);
    };
    int64_t at = 0;
    for (; at + kChains <= k; at += kChains, w += kChains / S * kLine) {
      INFENG_EACH (c, C / S) V::prefetch(w + c * kLine + kAhead);
      INFENG_EACH (c, C) add(at, c);
    }
    INFENG_EACH (c, C)
      if (at + from + c < k) add(at, c);
    INFENG_EACH (m, M)
      INFENG_EACH (c, C) V::store(chain[from + c][m], acc[m][c]);
  }
};

template <Vector V, class Core>
struct Shrink {
  static constexpr uint32_t kOp = INFENG_OP_SHRINK;
  static constexpr uint32_t kFuses = 0;
  static constexpr bool kExpands = Core::kFormat == INFENG_WEIGHT_INT8_ROW;
  static constexpr uint64_t kHandles = kExpands ? INFENG_NEED_BIT(INFENG_NEED_LORA_I8T4) : 0;
  static constexpr int64_t kRows = 64;  // of a tile
  static constexpr int64_t kPanels = 4;

  static int32_t accepts(const infeng_problem* p) {
    return p->op == kOp && p->weight_format == Core::kFormat && reads<Core>(p->act_format) && p->epilogue_count == 0;
  }

  static infeng_status workspace(const infeng_problem* problem, infeng_workspace* out) {
    out->align = kLine;
    out->shared = 0;
    out->per_worker = kCur + scratch_bytes<Core>(problem->k);
    if (problem->needs & kHandles)
      out->per_worker = round_up(out->per_worker, kLine) + kPanels * panel_bytes(problem->k);
    return INFENG_OK;
  }

  static int64_t tiles(const infeng_args* common, int32_t) {
    const auto& args = *(const infeng_shrink_args*)common;
    int64_t tiles = 0;
    for (int32_t i = 0; i < args.segment_count; ++i)
      tiles += Part(*segment_at(args.segments, args.segment_stride, i)).tiles();
    return common->rows == 0 ? 0 : tiles;
  }

  static infeng_status run(const infeng_args* common, int32_t, int64_t first, int64_t last, infeng_worker* worker) {
    const auto& args = *(const infeng_shrink_args*)common;
    constexpr bool kInteger = Core::kActivation == INFENG_ACT_INT8_G64;
    const infeng_tensor& x = kInteger ? args.in->q : args.in->x;
    if (!x.data)
      return fail(worker, INFENG_INVALID_ARGUMENT, "the input has no values of the type that the adapter's A needs");
    infeng_weight weight{};  // the A of the current segment
    weight.k = x.shape[1];
    weight.panel_bytes = panel_bytes(x.shape[1]);
    for (int32_t i = 0; i < args.segment_count && first < last; ++i) {
      const infeng_lora_segment& s = *segment_at(args.segments, args.segment_stride, i);
      if (s.dtype != dtype() && !(kExpands && s.dtype == INFENG_I8T4))
        return fail(worker, INFENG_INVALID_ARGUMENT, "an adapter is stored in another type");
      const Part part(s);
      const int64_t tiles = part.tiles();
      for (; first < tiles && first < last; ++first) shrink(args, weight, s, part, i, first, worker);
      first -= tiles;
      last -= tiles;
      if (first < 0) first = 0;
    }
    return INFENG_OK;
  }

 private:
  static constexpr int64_t kCur = kRows * kTileWidth * int64_t(sizeof(float));  // bytes of results

  // The tiles of a segment.
  struct Part {
    int64_t rows, panels, whole, step, groups;
    explicit Part(const infeng_lora_segment& s)
        : rows(s.row_end - s.row_begin),
          panels(ceil_div(s.rank, kLanes)),
          whole((s.rank + kLanes / 2 - 1) / kLanes),  // the last one may be folded
          step(rows <= kFewRows ? 1 : kPanels),
          groups(ceil_div(whole, step) + panels - whole) {}
    int64_t tiles() const { return rows <= 0 ? 0 : groups * ceil_div(rows, kRows); }
  };

  static constexpr uint32_t dtype() {
    return Core::kFormat == INFENG_WEIGHT_F32    ? INFENG_F32
           : Core::kFormat == INFENG_WEIGHT_BF16 ? INFENG_BF16
                                                 : INFENG_I8;
  }
  static int64_t panel_bytes(int64_t k) {
    const int64_t lanes = round_up(k, kGroup) * kLanes;
    return dtype() == INFENG_F32 ? 4 * lanes : dtype() == INFENG_BF16 ? 2 * lanes : kLine + lanes;
  }

  static void shrink(const infeng_shrink_args& args, const infeng_weight& weight, const infeng_lora_segment& s,
                     const Part& part, int32_t index, int64_t tile, infeng_worker* worker) {
    const int64_t panel = min_of(tile % part.groups * part.step, part.whole);
    const bool is_folded = panel == part.whole;
    const int64_t panels = is_folded ? 1 : min_of(part.step, part.whole - panel);
    const int64_t row = s.row_begin + tile / part.groups * kRows, rows = min_of(kRows, s.row_end - row);
    const bool has_tails = kExpands && s.dtype == INFENG_I8T4;
    const int64_t stored = has_tails ? tails_bytes(weight.k) : weight.panel_bytes;
    const uint8_t* data = (const uint8_t*)s.a + panel * stored;
    const uint8_t* next = nullptr;
    Feed none;
    if (panel + panels < part.panels)
      next = data + panels * stored;
    else if (index + 1 < args.segment_count)
      next = (const uint8_t*)segment_at(args.segments, args.segment_stride, index + 1)->a;
    float* cur = (float*)worker->private_;
    uint8_t* scratch = (uint8_t*)cur + kCur;
    if (has_tails) {
      uint8_t* expanded = (uint8_t*)cur + round_up(kCur + scratch_bytes<Core>(weight.k), kLine);
      const int64_t k = is_folded ? folded_inputs(weight.k) : weight.k;
      for (int64_t p = 0; p < panels; ++p) expand_tails<V>(data + p * stored, k, expanded + p * weight.panel_bytes);
      data = expanded;
      next = nullptr;
    }
    const LinearTile whole{*args.in, weight, s.row_end, data, next, panels, row, rows, cur, scratch, none};
    if (is_folded)
      fold(whole);
    else
      Core::template multiply<V>(whole);
    const auto factor = V::set(s.weight);
    for (int64_t p = 0; p < panels; ++p) {
      const int64_t column = (panel + p) * kLanes;
      const auto scaling = V::load(s.scaling + column);
      for (int64_t m = 0; m < rows; ++m)
        V::store(row_of<float>(args.u, row + m) + s.u_column + column,
                 V::mul(V::mul(V::load(cur + m * kTileWidth + p * kLanes), scaling), factor));
    }
  }

  static int64_t folded_inputs(int64_t k) { return ceil_div(k, 2 * kGroup) * kGroup; }

  // Lanes 8 to 15 of the result are 0.
  static void fold(const LinearTile& t) {
    constexpr int kHalf = kLanes / 2;
    const int64_t half = folded_inputs(t.weight.k);
    infeng_weight first = t.weight;
    first.k = min_of(t.weight.k, half);
    first.panel_bytes = panel_bytes(half);
    infeng_weight second = first;
    second.k = t.weight.k - first.k;
    const infeng_activation others = inputs_from(half, t.in);
    float* other = t.cur + kTileWidth / 2;
    Core::template multiply<V>({t.in, first, t.all_rows, t.panel, t.panel, 1, t.row, t.rows, t.cur, t.scratch, t.feed});
    Core::template multiply<V>(
        {others, second, t.all_rows, t.panel, t.next, 1, t.row, t.rows, other, t.scratch, t.feed});
    for (int64_t m = 0; m < t.rows; ++m) {
      float* c = t.cur + m * kTileWidth;
      V::store(c, V::add(V::load(c, kHalf), V::load(other + m * kTileWidth + kHalf, kHalf)));
    }
  }

  // The activation without its first `count` columns, which are whole groups.
  static infeng_activation inputs_from(int64_t count, infeng_activation in) {
    const auto skip = [](infeng_tensor& tensor, int64_t bytes) INFENG_INLINE_LAMBDA {
      if (tensor.data) tensor.data = (char*)tensor.data + bytes;
    };
    skip(in.x, count * int64_t(sizeof(float)));
    skip(in.q, count);
    skip(in.scale, count / kGroup * int64_t(sizeof(float)));
    skip(in.sum, count / kGroup * int64_t(sizeof(int32_t)));
    return in;
  }
};

}  // namespace
}  // namespace infeng
#endif  // INFENG_OPS_SHRINK_H
