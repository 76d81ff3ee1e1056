// linear: cur = x W^T, then the epilogues, then out = cur. This file is shared by all weight formats. A part is 4
// panels (64 outputs; 8 panels before GATED_MUL, which halves them) for all rows, so that it owns whole groups that it
// quantizes. If nothing is quantized and few rows make the op bound by memory, a part is 2 panels, so that workers
// finish together. A tile is one part, or all parts of a group of 128 or 256 that is quantized, whose results are kept
// until the group is complete. Rows are taken in blocks of kRowBlock, or as many as the core wants, whose results stay
// in the worker's scratch until they are finished. A block passes all of a worker's tiles, so that it stays in the L2
// cache, and the core prepares it only once. A `Core` implements the multiplication of a format; see linear_float.h and
// linear_int.h.
// SPDX-License-Identifier: Apache-2.0
#ifndef INFENG_OPS_LINEAR_H
#define INFENG_OPS_LINEAR_H

#include <infeng/ops/epilogue.h>
#include <infeng/ops/feed.h>

namespace infeng {
namespace {

constexpr int kRowBlock = 128;
constexpr int kFewRows = 8;
constexpr int kTileWidth = 2 * kGroup;  // columns of scratch; without GATED_MUL half of them are used

// The work of a core: rows [row, row + rows) times `panels` panels from `panel` on, into cur[rows][kTileWidth]. `next`:
// the weights that are needed afterwards, or NULL.
struct LinearTile {
  const infeng_activation& in;
  const infeng_weight& weight;
  int64_t all_rows;  // of the call
  const uint8_t* panel;
  const uint8_t* next;
  int64_t panels;
  int64_t row;
  int64_t rows;
  float* cur;
  uint8_t* scratch;   // scratch_bytes<Core> bytes
  Feed& feed;         // stepped for every group of k of every two panels if the call is bound by memory
  bool fresh = true;  // scratch does not hold what the core prepared for these rows yet
};

// The scratch of a core beside `cur`: a constant, or a function of k.
template <class Core>
INFENG_INLINE int64_t scratch_bytes(int64_t k) {
  if constexpr (requires { Core::scratch(k); })
    return Core::scratch(k);
  else
    return Core::kScratch;
}

// The most rows of a block, for which a worker's scratch has room: in general, and for k inputs.
template <class Core>
constexpr int64_t most_rows() {
  if constexpr (requires { Core::kMostRows; }) return Core::kMostRows;
  return kRowBlock;
}
template <class Core>
INFENG_INLINE int64_t block_rows(int64_t k) {
  if constexpr (requires { Core::block_rows(k); }) return Core::block_rows(k);
  return kRowBlock;
}

// Whether a core multiplies activations of a format: its own, wider groups up to the widest that it supports, or rows
// with one scale.
template <class Core>
INFENG_INLINE bool reads(uint32_t act_format) {
  if constexpr (requires { Core::kReadsRows; })
    if (Core::kReadsRows && act_format == INFENG_ACT_INT8_ROW) return true;
  if constexpr (requires { Core::kWidestActivation; })
    return act_format >= Core::kActivation && act_format <= Core::kWidestActivation;
  return act_format == Core::kActivation;
}

template <Vector V, class Core>
struct Linear {
  static constexpr uint32_t kOp = INFENG_OP_LINEAR;
  static constexpr uint32_t kFuses = kFusedEpilogues;
  static constexpr uint64_t kHandles = kHandlesLora | kHandlesGates | kHandlesWide;

  static int32_t accepts(const infeng_problem* p) {
    return p->op == kOp && p->weight_format == Core::kFormat && reads<Core>(p->act_format) &&
           epilogues_within(*p, kFuses, true) && wide_comes_last(*p);
  }

  static infeng_status workspace(const infeng_problem* problem, infeng_workspace* out) {
    out->align = kLine;
    out->shared = 0;
    out->per_worker = (cur_floats() + kept_floats(*problem)) * int64_t(sizeof(float)) + scratch_bytes<Core>(problem->k);
    return INFENG_OK;
  }

  static int64_t tiles(const infeng_args* args, int32_t) {
    return args->rows == 0 ? 0 : ceil_div(((const infeng_linear_args*)args)->weight->panels, tile_panels(*args));
  }

  static infeng_status run(const infeng_args* common, int32_t, int64_t first, int64_t last, infeng_worker* worker) {
    const auto& args = *(const infeng_linear_args*)common;
    const infeng_weight& weight = *args.weight;
    if (weight.format != Core::kFormat || weight.layout != 0)
      return fail(worker, INFENG_INVALID_ARGUMENT, "weight has another format or layout");
    if (!epilogues_within(*common, kFuses, true) || !wide_comes_last(*common))
      return fail(worker, INFENG_UNIMPLEMENTED, "epilogue list holds a kind that this kernel does not fuse");
    const int64_t part = part_panels(*common), step = tile_panels(*common);
    const int halves = has_epilogue(*common, INFENG_EPILOGUE_GATED_MUL) ? 2 : 1;
    const int64_t count = ceil_div(weight.panels, step), groups = ceil_div(weight.k, kGroup);
    const bool adapted = common->epilogue_count > 0 && common->epilogues[0]->kind == INFENG_EPILOGUE_LORA;
    float* cur = (float*)worker->private_;
    float* kept = step > part ? cur + cur_floats() : nullptr;
    uint8_t* scratch = (uint8_t*)(cur + cur_floats() + kept_floats(*common));
    const uint8_t* data = (const uint8_t*)weight.data;
    Feed feed;
    const int64_t block = block_rows<Core>(weight.k);
    for (int64_t row = 0; row < common->rows; row += block) {
      const int64_t rows = min_of(block, common->rows - row);
      for (int64_t tile = first; tile < last; ++tile) {
        const int64_t begin = tile * step, end = min_of(begin + step, weight.panels);
        feed.clear();
        if (adapted) feed_lora(feed, lora_of(common->epilogues[0]), begin, end - begin);
        if (common->next && row + rows == common->rows)
          feed_later(feed, *common, tile, count, step * weight.panel_bytes, *worker);
        feed.spread(groups * (end - begin) / 2);
        for (int64_t panel = begin; panel < end; panel += part) {
          const int64_t panels = min_of(part, end - panel);
          const int64_t ahead = panel + panels;  // a worker's tiles are consecutive, so it reads these next
          Core::template multiply<V>({*args.in, weight, common->rows, data + panel * weight.panel_bytes,
                                      ahead < weight.panels ? data + ahead * weight.panel_bytes : nullptr, panels, row,
                                      rows, cur, scratch, feed, panel == first * step});
          finish_rows<V>(*common, args.out, row, rows, panel * kLanes, panels * kLanes, cur, kTileWidth, kept);
        }
        if (kept) quantize_kept<V>(*common, row, rows, begin * kLanes / halves, (end - begin) * kLanes / halves, kept);
      }
    }
    return INFENG_OK;
  }

 private:
  static constexpr int64_t cur_floats() { return most_rows<Core>() * kTileWidth; }

  template <class Holder>
  static int64_t kept_floats(const Holder& holder) {
    return has_wide(holder) ? most_rows<Core>() * kWidestGroup : 0;
  }

  static int64_t tile_panels(const infeng_args& args) { return part_panels(args) * (widest_group(args) / kGroup); }

  static int64_t part_panels(const infeng_args& args) {
    if (has_epilogue(args, INFENG_EPILOGUE_GATED_MUL)) return 8;
    if (has_epilogue(args, INFENG_EPILOGUE_QUANTIZE)) return 4;
    return args.rows <= kFewRows ? 2 : 4;
  }
};

template <Vector V>
INFENG_INLINE void clear(const LinearTile& t) {
  for (int64_t m = 0; m < t.rows; ++m)
    for (int64_t c = 0; c < t.panels * kLanes; c += kLanes) V::store(t.cur + m * kTileWidth + c, V::zero());
}

// Fetches the scales with which the next panels begin. No line of a panel is near them when they are needed, after the
// panel's last line, so they would be a miss for each panel: 2 to 5% of a linear with four rows on Zen 3.
template <Vector V>
INFENG_INLINE void fetch_next_scales(const LinearTile& t) {
  if (t.next)
    for (int64_t p = 0; p < t.panels; ++p) V::prefetch(t.next + p * t.weight.panel_bytes);
}

// out = out * d[n], the last operation of formats whose panels begin with the scales of their outputs.
template <Vector V>
INFENG_INLINE void scale_outputs(const LinearTile& t) {
  fetch_next_scales<V>(t);
  for (int64_t p = 0; p < t.panels; ++p) {
    const auto d = V::load((const float*)(t.panel + p * t.weight.panel_bytes));
    for (int64_t m = 0; m < t.rows; ++m) {
      float* c = t.cur + m * kTileWidth + p * kLanes;
      V::store(c, V::mul(V::load(c), d));
    }
  }
}

// What `cur` holds until all of k is added, and how the exact sum over a group of the activation is added to it:
// floats, or the integers themselves if each row has one scale.
template <Vector V>
struct Floats {
  using Sum = typename V::F;
  static constexpr bool kExact = false;
  static INFENG_INLINE Sum zero() { return V::zero(); }
  static INFENG_INLINE Sum load(const float* cur) { return V::load(cur); }
  static INFENG_INLINE void store(float* cur, Sum sum) { V::store(cur, sum); }
  static INFENG_INLINE Sum add(Sum sum, typename V::I group, typename V::F scale) {
    return V::fma(V::to_float(group), scale, sum);
  }
};
template <Vector V>
struct Integers {
  using Sum = typename V::I;
  static constexpr bool kExact = true;
  static INFENG_INLINE Sum zero() { return V::iset(0); }
  static INFENG_INLINE Sum load(const float* cur) { return V::load_i32(cur); }
  static INFENG_INLINE void store(float* cur, Sum sum) { V::store_i32(cur, sum); }
  static INFENG_INLINE Sum add(Sum sum, typename V::I group, typename V::F) { return V::iadd(sum, group); }
};

// Whether the rows of a tile's activation have one scale each.
INFENG_INLINE bool sums_rows(const LinearTile& t) { return t.in.group == INFENG_GROUP_ROW; }

// out = (float(sum) * xscale[m]) * d[n], for integer sums in `cur`.
template <Vector V>
INFENG_INLINE void scale_sums(const LinearTile& t) {
  fetch_next_scales<V>(t);
  for (int64_t p = 0; p < t.panels; ++p) {
    const auto d = V::load((const float*)(t.panel + p * t.weight.panel_bytes));
    for (int64_t m = 0; m < t.rows; ++m) {
      const auto xscale = V::set(*row_of<float>(t.in.scale, t.row + m));
      float* c = t.cur + m * kTileWidth + p * kLanes;
      V::store(c, V::mul(V::mul(V::to_float(V::load_i32(c)), xscale), d));
    }
  }
}

}  // namespace
}  // namespace infeng
#endif  // INFENG_OPS_LINEAR_H
