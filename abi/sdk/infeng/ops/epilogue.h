// Epilogues: the steps that a producing op applies to its result in list order, and the op that only applies them.
//   bias       cur += b[n]                       row_scale  cur *= s[n]
//   residual   cur += residual[m][n]             quantize   act = quantize(cur) in groups of columns
//   scale      cur *= a                          softcap    cur = a * tanh(cur / a)
//   activate   cur = f(cur), f silu or gelu_tanh
//   gated_mul  panels alternate gate, up:        cur'[16 p + i] = f(cur[32 p + i]) * cur[32 p + 16 + i], f silu or
//                                                gelu_tanh, or swiglu of both
//   lora       per segment, see lora.h
// A producer passes the rows of a tile in scratch that this code may overwrite: `width` columns (a multiple of 16) from
// `column` on (a multiple of 64, or of 128 with GATED_MUL, so that a tile owns whole groups of 64; EPILOGUE's tiles own
// groups of 256). A producer that computes a wide group in parts passes `kept`, which holds the parts until the group
// is complete. LORA comes first in a linear's list and applies to all rows at once, because rows share an adapter;
// other steps apply row by row.
// SPDX-License-Identifier: Apache-2.0
#ifndef INFENG_OPS_EPILOGUE_H
#define INFENG_OPS_EPILOGUE_H

#include <infeng/ops/exp.h>
#include <infeng/ops/lora.h>
#include <infeng/ops/quantize.h>

namespace infeng {
namespace {

constexpr uint32_t kFusedEpilogues =
    INFENG_EPILOGUE_BIT(INFENG_EPILOGUE_BIAS) | INFENG_EPILOGUE_BIT(INFENG_EPILOGUE_LORA) |
    INFENG_EPILOGUE_BIT(INFENG_EPILOGUE_ROW_SCALE) | INFENG_EPILOGUE_BIT(INFENG_EPILOGUE_RESIDUAL) |
    INFENG_EPILOGUE_BIT(INFENG_EPILOGUE_GATED_MUL) | INFENG_EPILOGUE_BIT(INFENG_EPILOGUE_QUANTIZE) |
    INFENG_EPILOGUE_BIT(INFENG_EPILOGUE_SCALE) | INFENG_EPILOGUE_BIT(INFENG_EPILOGUE_SOFTCAP) |
    INFENG_EPILOGUE_BIT(INFENG_EPILOGUE_ACTIVATE);

// cur[c] = op(cur[c], operand[c]) over the columns of the operand; the rest is padding and unchanged.
template <Vector V, class Op>
INFENG_INLINE void combine_columns(float* cur, const float* operand, int64_t count, const Op& op) {
  int64_t c = 0;
  for (; c + kLanes <= count; c += kLanes) V::store(cur + c, op(V::load(cur + c), V::load(operand + c)));
  if (c < count) V::store(cur + c, op(V::load(cur + c), V::load(operand + c, int(count - c))), int(count - c));
}

// cur'[c] = f(gate, up) for `width` outputs, whose panels of gate and up alternate.
template <Vector V, class F>
INFENG_INLINE void join_gates(float* cur, int64_t width, const F& f) {
  for (int64_t c = 0; c < width; c += kLanes) V::store(cur + c, f(V::load(cur + 2 * c), V::load(cur + 2 * c + kLanes)));
}

// Applies the list from step `from` on to one row. With `kept` (kWidestGroup floats), columns that a step quantizes in
// wide groups are copied to their place in it instead. `whole` takes the row for steps that quantize it whole.
template <Vector V>
INFENG_NOINLINE void finish_row(const infeng_args& args, uint32_t from, const infeng_tensor& out, int64_t row,
                                int64_t column, int64_t width, float* cur, float* kept = nullptr,
                                float* whole = nullptr) {
  const auto add = [](auto a, auto b) INFENG_INLINE_LAMBDA { return V::add(a, b); };
  const auto mul = [](auto a, auto b) INFENG_INLINE_LAMBDA { return V::mul(a, b); };
  for (uint32_t i = from; i < args.epilogue_count; ++i) {
    const infeng_epilogue* e = args.epilogues[i];
    const infeng_tensor& operand = operand_of(e);
    switch (e->kind) {
      case INFENG_EPILOGUE_LORA:
        add_lora<V>(lora_of(e), row, 1, column, width, cur, 0);
        break;
      case INFENG_EPILOGUE_BIAS:
        combine_columns<V>(cur, row_of<float>(operand, 0) + column, min_of(width, operand.shape[0] - column), add);
        break;
      case INFENG_EPILOGUE_ROW_SCALE:
        combine_columns<V>(cur, row_of<float>(operand, 0) + column, min_of(width, operand.shape[0] - column), mul);
        break;
      case INFENG_EPILOGUE_RESIDUAL:
        combine_columns<V>(cur, row_of<float>(operand, row) + column, min_of(width, operand.shape[1] - column), add);
        break;
      case INFENG_EPILOGUE_GATED_MUL:
        column /= 2;
        width /= 2;
        if (e->function == INFENG_FUNCTION_SWIGLU)
          join_gates<V>(cur, width,
                        [e](auto g, auto u) INFENG_INLINE_LAMBDA { return swiglu<V>(g, u, e->scalar, e->limit); });
        else if (e->function == INFENG_FUNCTION_GELU_TANH)
          join_gates<V>(cur, width, [](auto g, auto u) INFENG_INLINE_LAMBDA { return V::mul(gelu_tanh<V>(g), u); });
        else
          join_gates<V>(cur, width, [](auto g, auto u) INFENG_INLINE_LAMBDA { return V::mul(silu<V>(g), u); });
        break;
      case INFENG_EPILOGUE_SCALE:
        for (int64_t c = 0; c < width; c += kLanes) V::store(cur + c, V::mul(V::load(cur + c), V::set(e->scalar)));
        break;
      case INFENG_EPILOGUE_SOFTCAP:
        for (int64_t c = 0; c < width; c += kLanes) V::store(cur + c, softcap<V>(V::load(cur + c), e->scalar));
        break;
      case INFENG_EPILOGUE_ACTIVATE:
        if (e->function == INFENG_FUNCTION_GELU_TANH)
          for (int64_t c = 0; c < width; c += kLanes) V::store(cur + c, gelu_tanh<V>(V::load(cur + c)));
        else
          for (int64_t c = 0; c < width; c += kLanes) V::store(cur + c, silu<V>(V::load(cur + c)));
        break;
      case INFENG_EPILOGUE_QUANTIZE:
        if (is_row(*e))
          for (int64_t c = 0; c < width; c += kLanes) V::store(whole + column + c, V::load(cur + c));
        else if (!is_wide(*e))
          quantize_columns<V>(act_of(e), row, column, cur, width);
        else if (!kept)
          quantize_wide<V>(act_of(e), row, column, cur, width);
        else
          for (int64_t c = 0; c < width; c += kLanes) V::store(kept + column % kWidestGroup + c, V::load(cur + c));
        break;
    }
  }
  if (!out.data) return;
  float* target = row_of<float>(out, row) + column;
  width = min_of(width, out.shape[1] - column);
  int64_t c = 0;
  for (; c + kLanes <= width; c += kLanes) V::store(target + c, V::load(cur + c));
  if (c < width) V::store(target + c, V::load(cur + c), int(width - c));
}

// Applies the whole list to rows that lie `stride` floats apart; `kept` has kWidestGroup floats for each.
template <Vector V>
INFENG_INLINE void finish_rows(const infeng_args& args, const infeng_tensor& out, int64_t row, int64_t rows,
                               int64_t column, int64_t width, float* cur, int64_t stride, float* kept = nullptr) {
  uint32_t from = 0;
  if (args.epilogue_count > 0 && args.epilogues[0]->kind == INFENG_EPILOGUE_LORA) {
    const infeng_lora_epilogue& lora = lora_of(args.epilogues[0]);
    if (lora.segment_count > 0) add_lora<V>(lora, row, rows, column, width, cur, stride);
    from = 1;
  }
  for (int64_t m = 0; m < rows; ++m)
    finish_row<V>(args, from, out, row + m, column, width, cur + m * stride, kept ? kept + m * kWidestGroup : nullptr);
}

// Applies the steps that quantize wide groups to the kept columns of one tile.
template <Vector V>
INFENG_NOINLINE void quantize_kept(const infeng_args& args, int64_t row, int64_t rows, int64_t column, int64_t width,
                                   const float* kept) {
  for (int64_t m = 0; m < rows; ++m, kept += kWidestGroup)
    for (uint32_t i = 0; i < args.epilogue_count; ++i)
      if (is_wide(*args.epilogues[i]))
        quantize_wide<V>(act_of(args.epilogues[i]), row + m, column, kept + column % kWidestGroup, width);
}

// The op EPILOGUE. A tile is one row, read and written from left to right, so `out` may be `in`.
template <Vector V>
struct Epilogue {
  static constexpr uint32_t kOp = INFENG_OP_EPILOGUE;
  static constexpr uint32_t kFuses = kFusedEpilogues;
  static constexpr uint64_t kHandles = kHandlesLora | kHandlesGates | kHandlesWide | kHandlesRows;
  static constexpr int64_t kColumns = 2 * kWidestGroup;  // GATED_MUL leaves half of them

  template <class Holder>
  static bool fuses(const Holder& holder) {
    return epilogues_within(holder, kFuses, true, true) && (!has_row(holder) || wide_comes_last(holder));
  }

  static int32_t accepts(const infeng_problem* p) { return p->op == kOp && fuses(*p); }

  static infeng_status workspace(const infeng_problem* problem, infeng_workspace* out) {
    return row_workspace(problem, out);
  }

  static int64_t tiles(const infeng_args* args, int32_t) { return args->rows; }

  static infeng_status run(const infeng_args* common, int32_t, int64_t first, int64_t last, infeng_worker* worker) {
    const auto& args = *(const infeng_epilogue_args*)common;
    if (!fuses(*common))
      return fail(worker, INFENG_UNIMPLEMENTED, "epilogue list holds a kind that this kernel does not fuse");
    const int64_t columns = args.in.shape[1];
    const int64_t halves = has_epilogue(*common, INFENG_EPILOGUE_GATED_MUL) ? 2 : 1;
    float* whole = (float*)worker->private_;
    for (int64_t row = first; row < last; ++row) {
      const float* in = row_of<float>(args.in, row);
      for (int64_t column = 0; column < columns; column += kColumns) {
        const int64_t width = min_of(kColumns, columns - column);
        alignas(64) float cur[kColumns];
        for (int64_t c = 0; c < width; c += kLanes) V::store(cur + c, V::load(in + column + c, int(width - c)));
        finish_row<V>(*common, 0, args.out, row, column, round_up(width, kLanes), cur, nullptr, whole);
      }
      quantize_rows<V>(*common, row, columns / halves, columns, whole);
    }
    return INFENG_OK;
  }
};

}  // namespace
}  // namespace infeng
#endif  // INFENG_OPS_EPILOGUE_H
