/* Epilogues: the steps that may ride at the end of a producing op, and the op that applies them on their own.
 * SPDX-License-Identifier: Apache-2.0 */
#include "epilogue.h"

int64_t reference_tile_columns(const infeng_args* args) {
  const infeng_epilogue* e = args->epilogues;
  for (uint32_t i = 0; i < args->epilogue_count; i++, e = next_epilogue(e)) {
    if (e->kind == INFENG_EPILOGUE_SILU_MUL) return 2 * GROUP;
  }
  return GROUP;
}

infeng_status reference_check_list(const infeng_args* args, infeng_worker* worker) {
  int silu_muls = 0;
  const infeng_epilogue* e = args->epilogues;
  for (uint32_t i = 0; i < args->epilogue_count; i++, e = next_epilogue(e)) {
    if (e->kind < INFENG_EPILOGUE_BIAS || e->kind > INFENG_EPILOGUE_QUANTIZE) {
      return fail(worker, INFENG_UNIMPLEMENTED, "epilogue list holds a kind that this library does not know");
    }
    silu_muls += e->kind == INFENG_EPILOGUE_SILU_MUL;
  }
  if (silu_muls > 1) return fail(worker, INFENG_INVALID_ARGUMENT, "epilogue list holds silu_mul more than once");
  return INFENG_OK;
}

/* Columns that a vector or matrix of `available` columns really has in this block; the rest are padding. */
INLINE int64_t columns_of(const block* b, int64_t available) {
  const int64_t left = available - b->column;
  return left < 0 ? 0 : min_i64(left, b->width);
}

/* cur = cur + b[n] */
static void add_bias(block* b, const infeng_tensor* bias) {
  const float* vector = f32_row(bias, 0) + b->column;
  const int64_t width = columns_of(b, bias->shape[0]);
  for (int64_t m = 0; m < b->rows; m++) {
    for (int64_t n = 0; n < width; n++) b->cur[m][n] = b->cur[m][n] + vector[n];
  }
}

/* cur = cur * s[n] */
static void scale_rows(block* b, const infeng_tensor* scale) {
  const float* vector = f32_row(scale, 0) + b->column;
  const int64_t width = columns_of(b, scale->shape[0]);
  for (int64_t m = 0; m < b->rows; m++) {
    for (int64_t n = 0; n < width; n++) b->cur[m][n] = b->cur[m][n] * vector[n];
  }
}

/* cur = cur + residual[m][n] */
static void add_residual(block* b, const infeng_tensor* residual) {
  const int64_t width = columns_of(b, residual->shape[1]);
  for (int64_t m = 0; m < b->rows; m++) {
    const float* row = f32_row(residual, b->row + m) + b->column;
    for (int64_t n = 0; n < width; n++) b->cur[m][n] = b->cur[m][n] + row[n];
  }
}

/* 16 elements of rank r of panel i of B, [panel_count][rank][16], widened. */
INLINE void read_b(const infeng_lora_segment* s, int64_t i, int64_t r, float out[LANES]) {
  const int64_t at = (i * s->rank + r) * LANES;
  for (int n = 0; n < LANES; n++) {
    switch (s->dtype) {
      case INFENG_F32:
        out[n] = ((const float*)s->b)[at + n];
        break;
      case INFENG_BF16:
        out[n] = f32_from_bf16(((const uint16_t*)s->b)[at + n]);
        break;
      default:
        out[n] = (float)((const int8_t*)s->b)[at + n];
        break;
    }
  }
}

/* cur = fma(u[r], B[n][r], cur), r ascending; int8 B sums apart and is scaled once. Then row_scale, then bias. */
INLINE void add_lora_panel(const infeng_lora_segment* s, int64_t i, const float* u, float* cur) {
  float t[LANES] = {0};
  float* chain = s->dtype == INFENG_I8 ? t : cur;
  for (int64_t r = 0; r < s->rank; r++) {
    float weight[LANES];
    read_b(s, i, r, weight);
    for (int n = 0; n < LANES; n++) chain[n] = fmaf(u[r], weight[n], chain[n]);
  }
  if (s->dtype == INFENG_I8 && s->rank > 0) {
    for (int n = 0; n < LANES; n++) cur[n] = fmaf(t[n], s->b_scale[i * LANES + n], cur[n]);
  }
  for (int n = 0; n < LANES && s->row_scale; n++) cur[n] = cur[n] * s->row_scale[i * LANES + n];
  for (int n = 0; n < LANES && s->bias; n++) cur[n] = cur[n] + s->bias[i * LANES + n];
}

/* Each segment in order, on the rows and panels that it covers. */
CLONED static void add_lora(block* b, const infeng_epilogue* e) {
  for (int32_t i = 0; i < e->segment_count; i++) {
    const infeng_lora_segment* s = lora_segment(e->segments, e->segment_stride, i);
    for (int64_t m = 0; m < b->rows; m++) {
      const int64_t row = b->row + m;
      if (row < s->row_begin || row >= s->row_end) continue;
      for (int64_t p = 0; p < s->panel_count; p++) {
        const int64_t n0 = (s->panel_begin + p * s->panel_step) * LANES - b->column;
        if (n0 < 0 || n0 >= b->width) continue;
        const float* u = s->rank ? f32_row(&e->operand, row) + s->u_column : NULL;
        add_lora_panel(s, p, u, b->cur[m] + n0);
      }
    }
  }
}

/* Panels alternate gate, up: cur'[16 p + i] = silu(cur[32 p + i]) * cur[32 p + 16 + i]. */
CLONED static void silu_mul(block* b) {
  for (int64_t m = 0; m < b->rows; m++) {
    for (int64_t p = 0; p < b->width / (2 * LANES); p++) {
      float product[LANES];
      const float* gate = b->cur[m] + 2 * LANES * p;
      for (int i = 0; i < LANES; i++) product[i] = ref_silu(gate[i]) * gate[LANES + i];
      memcpy(b->cur[m] + LANES * p, product, sizeof product);
    }
  }
  b->column /= 2;
  b->width /= 2;
}

infeng_status reference_finish_block(const infeng_args* args, const infeng_tensor* out, block* b,
                                     infeng_worker* worker) {
  const infeng_epilogue* e = args->epilogues;
  for (uint32_t i = 0; i < args->epilogue_count; i++, e = next_epilogue(e)) {
    switch (e->kind) {
      case INFENG_EPILOGUE_BIAS:
        add_bias(b, &e->operand);
        break;
      case INFENG_EPILOGUE_LORA:
        add_lora(b, e);
        break;
      case INFENG_EPILOGUE_ROW_SCALE:
        scale_rows(b, &e->operand);
        break;
      case INFENG_EPILOGUE_RESIDUAL:
        add_residual(b, &e->operand);
        break;
      case INFENG_EPILOGUE_SILU_MUL:
        silu_mul(b);
        break;
      case INFENG_EPILOGUE_QUANTIZE:
        for (int64_t m = 0; m < b->rows; m++) quantize_columns(&e->act, b->row + m, b->column, b->cur[m], b->width);
        break;
      default:
        return fail(worker, INFENG_UNIMPLEMENTED, "unknown epilogue");
    }
  }
  if (!out->data) return INFENG_OK;
  const int64_t width = columns_of(b, out->shape[1]);
  for (int64_t m = 0; m < b->rows && width > 0; m++) {
    memcpy(f32_row(out, b->row + m) + b->column, b->cur[m], (size_t)width * sizeof(float));
  }
  return INFENG_OK;
}

/* A tile is one row, read and written from left to right: so `out` may be `in` even where SILU_MUL halves the width. */
static int64_t epilogue_tiles(const infeng_args* args, int32_t phase) {
  (void)phase;
  return args->rows;
}

static infeng_status epilogue_run(const infeng_args* common, int32_t phase, int64_t first, int64_t last,
                                  infeng_worker* worker) {
  (void)phase;
  const infeng_epilogue_args* args = (const infeng_epilogue_args*)common;
  infeng_status status = reference_check_list(common, worker);
  const int64_t step = reference_tile_columns(common);
  for (int64_t row = first; row < last && status == INFENG_OK; row++) {
    for (int64_t column = 0; column < args->in.shape[1] && status == INFENG_OK; column += step) {
      block b = {.row = row, .rows = 1, .column = column, .width = min_i64(step, args->in.shape[1] - column)};
      memcpy(b.cur[0], f32_row(&args->in, row) + column, (size_t)b.width * sizeof(float));
      b.width = ceil_div(b.width, LANES) * LANES; /* whole panels; the padding is zero */
      status = reference_finish_block(common, &args->out, &b, worker);
    }
  }
  return status;
}

static int32_t epilogue_accepts(const infeng_problem* p) {
  return p->op == INFENG_OP_EPILOGUE && fuses_only(p, ALL_EPILOGUES);
}

KERNEL(reference_epilogue, INFENG_OP_EPILOGUE, "epilogue", ALL_EPILOGUES, epilogue_accepts, epilogue_tiles,
       epilogue_run);
