/* The steps that an op applies to its own result, in scalar C11, with the bytes of the reference kernels. A kernel in C
 * that fuses all of them:
 *
 *   .fuses = INFENG_C_FUSES, .handles = INFENG_C_HANDLES, and `accepts` calls infeng_fuses
 *   tiles:  of infeng_tile_columns(args) columns each, so that a tile has whole groups to quantize
 *   run:    infeng_check_list once; then for each row of a tile, the op's result in a local array of
 *           INFENG_C_MOST_COLUMNS floats, and infeng_finish, which applies the list and writes the output
 *
 * An op whose tiles are whole rows (norms, EPILOGUE) also handles INFENG_C_HANDLES_ROWS: its `workspace` calls
 * infeng_row_workspace, infeng_finish gets worker->private_, and infeng_finish_whole_row ends the row.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef INFENG_C_EPILOGUE_H
#define INFENG_C_EPILOGUE_H

#include <infeng/c/lora.h>

#define INFENG_C_FUSES                                                                              \
  (INFENG_EPILOGUE_BIT(INFENG_EPILOGUE_BIAS) | INFENG_EPILOGUE_BIT(INFENG_EPILOGUE_LORA) |          \
   INFENG_EPILOGUE_BIT(INFENG_EPILOGUE_ROW_SCALE) | INFENG_EPILOGUE_BIT(INFENG_EPILOGUE_RESIDUAL) | \
   INFENG_EPILOGUE_BIT(INFENG_EPILOGUE_GATED_MUL) | INFENG_EPILOGUE_BIT(INFENG_EPILOGUE_QUANTIZE) | \
   INFENG_EPILOGUE_BIT(INFENG_EPILOGUE_SCALE) | INFENG_EPILOGUE_BIT(INFENG_EPILOGUE_SOFTCAP) |      \
   INFENG_EPILOGUE_BIT(INFENG_EPILOGUE_ACTIVATE) | INFENG_EPILOGUE_BIT(INFENG_EPILOGUE_MUL))
#define INFENG_C_FUNCTION_(name) INFENG_NEED_BIT(INFENG_NEED_FUNCTION(INFENG_FUNCTION_##name))
#define INFENG_C_HANDLES                                                                                      \
  (INFENG_NEED_BIT(INFENG_NEED_LORA_F32) | INFENG_NEED_BIT(INFENG_NEED_LORA_BF16) |                           \
   INFENG_NEED_BIT(INFENG_NEED_LORA_I8) | INFENG_NEED_BIT(INFENG_NEED_LORA_I8T4) | INFENG_C_FUNCTION_(SILU) | \
   INFENG_C_FUNCTION_(GELU) | INFENG_C_FUNCTION_(GELU_TANH) | INFENG_C_FUNCTION_(RELU2) |                     \
   INFENG_C_FUNCTION_(SIGMOID) | INFENG_C_FUNCTION_(SWIGLU) | INFENG_C_FUNCTION_(WIDE))
#define INFENG_C_HANDLES_ROWS (INFENG_C_HANDLES | INFENG_C_FUNCTION_(ROW))

enum { INFENG_C_MOST_COLUMNS = 2 * INFENG_C_WIDEST_GROUP }; /* of a tile; a gate halves them */

/* Stores an error text for the host and returns the status. */
INFENG_C_INLINE infeng_status infeng_fail(infeng_worker* worker, infeng_status status, const char* text) {
  if (worker->message && worker->message_size > 0) {
    const size_t length = (size_t)infeng_min((int64_t)strlen(text), worker->message_size - 1);
    memcpy(worker->message, text, length);
    worker->message[length] = '\0';
  }
  return status;
}

/* The fields behind a step's header. */
INFENG_C_INLINE const infeng_tensor* infeng_operand_of(const infeng_epilogue* e) {
  return &((const infeng_operand_epilogue*)e)->operand;
}
INFENG_C_INLINE const infeng_activation* infeng_act_of(const infeng_epilogue* e) {
  return ((const infeng_quantize_epilogue*)e)->act;
}

/* Whether a step quantizes whole rows. */
INFENG_C_INLINE int infeng_is_row(const infeng_epilogue* e) {
  return e->kind == INFENG_EPILOGUE_QUANTIZE && e->function == INFENG_FUNCTION_ROW;
}

/* For `accepts`: whether all steps of a problem are in `mask`, a sum of INFENG_EPILOGUE_BITs. */
INFENG_C_INLINE int32_t infeng_fuses(const infeng_problem* problem, uint32_t mask) {
  for (uint32_t i = 0; i < problem->epilogue_count; i++) {
    const uint32_t kind = problem->epilogues[i]->kind;
    if (kind > 31 || !(mask & INFENG_EPILOGUE_BIT(kind))) return 0;
  }
  return 1;
}

/* For `run`, once per call: whether this header knows all steps of the list. */
INFENG_C_INLINE infeng_status infeng_check_list(const infeng_args* args, infeng_worker* worker) {
  for (uint32_t i = 0; i < args->epilogue_count; i++) {
    const infeng_epilogue* e = args->epilogues[i];
    if (e->kind > 31 || !(INFENG_C_FUSES & INFENG_EPILOGUE_BIT(e->kind)) || e->function > INFENG_FUNCTION_ROW)
      return infeng_fail(worker, INFENG_UNIMPLEMENTED, "the list has a step or a function that is not known");
  }
  return INFENG_OK;
}

/* The part of a row that a list leaves: 2 if it has a gate, which halves it, else 1. */
INFENG_C_INLINE int64_t infeng_halves(const infeng_args* args) {
  for (uint32_t i = 0; i < args->epilogue_count; i++)
    if (args->epilogues[i]->kind == INFENG_EPILOGUE_GATED_MUL) return 2;
  return 1;
}

/* The columns of a tile before its list is applied: a group of the widest activation that the list quantizes, 64 at
 * least, and twice as many before a gate. INFENG_C_MOST_COLUMNS at most. */
INFENG_C_INLINE int64_t infeng_tile_columns(const infeng_args* args) {
  int64_t columns = INFENG_C_GROUP;
  for (uint32_t i = 0; i < args->epilogue_count; i++) {
    const infeng_epilogue* e = args->epilogues[i];
    if (e->kind != INFENG_EPILOGUE_QUANTIZE || e->function != INFENG_FUNCTION_WIDE) continue;
    if (infeng_act_of(e)->group > columns) columns = infeng_act_of(e)->group;
  }
  return columns * infeng_halves(args);
}

/* Panels of gate and up alternate: cur'[16 p + n] = f(cur[32 p + n]) * cur[32 p + 16 + n]. */
INFENG_C_INLINE void infeng_join_gates(const infeng_epilogue* e, float* cur, int64_t width) {
  for (int64_t c = 0; c < width; c += INFENG_C_LANES) {
    float joined[INFENG_C_LANES];
    for (int n = 0; n < INFENG_C_LANES; n++) {
      const float gate = cur[2 * c + n], up = cur[2 * c + INFENG_C_LANES + n];
      joined[n] = e->function == INFENG_FUNCTION_SWIGLU ? infeng_swiglu(gate, up, e->scalar, e->limit)
                                                        : infeng_apply(e->function, gate) * up;
    }
    memcpy(cur + c, joined, sizeof joined);
  }
}

/* Applies the list to `width` columns of row `row` from `column` on, in `cur`, and writes what is left to `out`, where
 * that has data. width is a multiple of 16: columns beyond the end of a row are padding. column is a multiple of
 * infeng_tile_columns. `kept` is worker->private_ of a kernel with infeng_row_workspace, else NULL. */
INFENG_C_INLINE void infeng_finish(const infeng_args* args, const infeng_tensor* out, int64_t row, int64_t column,
                                   int64_t width, float* cur, float* kept) {
  for (uint32_t i = 0; i < args->epilogue_count; i++) {
    const infeng_epilogue* e = args->epilogues[i];
    const infeng_tensor* operand = infeng_operand_of(e); /* of BIAS, ROW_SCALE, RESIDUAL and MUL */
    switch (e->kind) {
      case INFENG_EPILOGUE_BIAS: {
        const float* vector = infeng_f32_row(operand, 0) + column;
        for (int64_t c = 0; c < infeng_min(width, operand->shape[0] - column); c++) cur[c] = cur[c] + vector[c];
        break;
      }
      case INFENG_EPILOGUE_LORA:
        infeng_add_lora((const infeng_lora_epilogue*)e, row, column, width, cur);
        break;
      case INFENG_EPILOGUE_ROW_SCALE: {
        const float* vector = infeng_f32_row(operand, 0) + column;
        for (int64_t c = 0; c < infeng_min(width, operand->shape[0] - column); c++) cur[c] = cur[c] * vector[c];
        break;
      }
      case INFENG_EPILOGUE_RESIDUAL: {
        const float* other = infeng_f32_row(operand, row) + column;
        for (int64_t c = 0; c < infeng_min(width, operand->shape[1] - column); c++) cur[c] = cur[c] + other[c];
        break;
      }
      case INFENG_EPILOGUE_MUL: {
        const float* other = infeng_f32_row(operand, row) + column;
        for (int64_t c = 0; c < infeng_min(width, operand->shape[1] - column); c++)
          cur[c] = cur[c] * infeng_apply(e->function, other[c]);
        break;
      }
      case INFENG_EPILOGUE_GATED_MUL:
        column /= 2;
        width /= 2;
        infeng_join_gates(e, cur, width);
        break;
      case INFENG_EPILOGUE_SCALE:
        for (int64_t c = 0; c < width; c++) cur[c] = cur[c] * e->scalar;
        break;
      case INFENG_EPILOGUE_SOFTCAP:
        for (int64_t c = 0; c < width; c++) cur[c] = infeng_softcap(cur[c], e->scalar);
        break;
      case INFENG_EPILOGUE_ACTIVATE:
        for (int64_t c = 0; c < width; c++) cur[c] = infeng_apply(e->function, cur[c]);
        break;
      case INFENG_EPILOGUE_QUANTIZE:
        if (infeng_is_row(e))
          memcpy(kept + column, cur, (size_t)width * sizeof *cur);
        else
          infeng_quantize_columns(infeng_act_of(e), row, column, cur, width);
        break;
    }
  }
  if (!out->data || out->shape[1] <= column) return;
  memcpy(infeng_f32_row(out, row) + column, cur, (size_t)infeng_min(width, out->shape[1] - column) * sizeof *cur);
}

/* Scratch memory of a kernel whose list may quantize whole rows of up to n values: a row, and a copy to rotate. */
INFENG_C_INLINE int64_t infeng_kept_columns(int64_t n) {
  return (n + INFENG_C_LANES - 1) / INFENG_C_LANES * INFENG_C_LANES;
}
INFENG_C_INLINE infeng_status infeng_row_workspace(const infeng_problem* problem, infeng_workspace* out) {
  out->align = 0;
  out->shared = out->per_worker = 0;
  for (uint32_t i = 0; i < problem->epilogue_count; i++)
    if (infeng_is_row(problem->epilogues[i]))
      out->per_worker = 2 * infeng_kept_columns(problem->n) * (int64_t)sizeof(float);
  return INFENG_OK;
}

/* Quantizes a whole row of k values, after infeng_finish has kept all its columns. n: the problem's. */
INFENG_C_INLINE void infeng_finish_whole_row(const infeng_args* args, int64_t row, int64_t k, int64_t n, float* kept) {
  for (uint32_t i = 0; i < args->epilogue_count; i++) {
    if (!infeng_is_row(args->epilogues[i])) continue;
    float* copy = kept + infeng_kept_columns(n);
    memcpy(copy, kept, (size_t)k * sizeof *copy);
    infeng_quantize_row(infeng_act_of(args->epilogues[i]), row, copy, k);
  }
}

#endif /* INFENG_C_EPILOGUE_H */
