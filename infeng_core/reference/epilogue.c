/* Epilogues: the steps that a producing op applies to its result, and the op that only applies them.
 * SPDX-License-Identifier: Apache-2.0 */
#include "epilogue.h"

int64_t reference_tile_columns(const infeng_args* args) {
  int64_t columns = GROUP, halves = 1;
  for (uint32_t i = 0; i < args->epilogue_count; i++) {
    const infeng_epilogue* e = args->epilogues[i];
    if (e->kind == INFENG_EPILOGUE_GATED_MUL) halves = 2;
    if (is_wide(e) && act_of(e)->group > columns) columns = act_of(e)->group;
  }
  return halves * columns;
}

/* Only MUL takes IDENTITY, only GATED_MUL takes SWIGLU; other kinds have function 0. */
static int knows_function(const infeng_epilogue* e) {
  switch (e->kind) {
    case INFENG_EPILOGUE_GATED_MUL:
      return e->function > INFENG_FUNCTION_IDENTITY && e->function <= INFENG_FUNCTION_SWIGLU;
    case INFENG_EPILOGUE_ACTIVATE:
      return e->function > INFENG_FUNCTION_IDENTITY && e->function < INFENG_FUNCTION_SWIGLU;
    case INFENG_EPILOGUE_MUL:
      return e->function < INFENG_FUNCTION_SWIGLU;
    default:
      return e->function == 0 || is_wide(e) || is_row(e);
  }
}

infeng_status reference_check_list(const infeng_args* args, infeng_worker* worker) {
  int gated = 0, rows = 0;
  for (uint32_t i = 0; i < args->epilogue_count; i++) {
    const infeng_epilogue* e = args->epilogues[i];
    if (e->kind < INFENG_EPILOGUE_BIAS || e->kind > INFENG_EPILOGUE_MUL || !knows_function(e)) {
      return fail(worker, INFENG_UNIMPLEMENTED,
                  "epilogue list holds a kind or function that this library does not know");
    }
    gated += e->kind == INFENG_EPILOGUE_GATED_MUL;
    rows += is_row(e);
    if (rows && e->kind != INFENG_EPILOGUE_QUANTIZE) {
      return fail(worker, INFENG_UNIMPLEMENTED, "a step follows one that quantizes whole rows");
    }
  }
  if (gated > 1) return fail(worker, INFENG_INVALID_ARGUMENT, "epilogue list holds a gated multiplication twice");
  return INFENG_OK;
}

/* The columns of this block that a vector or matrix of `available` columns has; the rest is padding. */
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
  /* INFENG_I8T4: blocks of 8 rank rows, 16 bytes and 7 times 8 bytes of nibbles. */
  const uint8_t* block = (const uint8_t*)s->b + (i * s->rank + r) / 8 * 72;
  const uint8_t* tail = block + 16 + (r % 8 - 1) * 8;
  for (int n = 0; n < LANES; n++) {
    switch (s->dtype) {
      case INFENG_F32:
        out[n] = ((const float*)s->b)[at + n];
        break;
      case INFENG_BF16:
        out[n] = f32_from_bf16(((const uint16_t*)s->b)[at + n]);
        break;
      case INFENG_I8T4:
        out[n] = r % 8 == 0 ? (float)((const int8_t*)block)[n] : (float)((n < 8 ? tail[n] & 15 : tail[n - 8] >> 4) - 8);
        break;
      default:
        out[n] = (float)((const int8_t*)s->b)[at + n];
        break;
    }
  }
}

/* cur = fma(u[r], B[n][r], cur), r ascending; with int8 B, a sum of its own is scaled once. Then row_scale, then bias.
 * */
INLINE void add_lora_panel(const infeng_lora_segment* s, int64_t i, const float* u, float* cur) {
  float t[LANES] = {0};
  const int apart = s->dtype == INFENG_I8 || s->dtype == INFENG_I8T4;
  float* chain = apart ? t : cur;
  for (int64_t r = 0; r < s->rank; r++) {
    float weight[LANES];
    read_b(s, i, r, weight);
    for (int n = 0; n < LANES; n++) chain[n] = fmaf(u[r], weight[n], chain[n]);
  }
  if (apart && s->rank > 0) {
    for (int n = 0; n < LANES; n++) cur[n] = fmaf(t[n], f32_from_bf16(s->b_scale[i * LANES + n]), cur[n]);
  }
  for (int n = 0; n < LANES && s->row_scale; n++) cur[n] = cur[n] * s->row_scale[i * LANES + n];
  for (int n = 0; n < LANES && s->bias; n++) cur[n] = cur[n] + s->bias[i * LANES + n];
}

/* Applies each segment in order to the rows and panels that it covers. */
CLONED static void add_lora(block* b, const infeng_lora_epilogue* e) {
  for (int32_t i = 0; i < e->segment_count; i++) {
    const infeng_lora_segment* s = lora_segment(e->segments, e->segment_stride, i);
    for (int64_t m = 0; m < b->rows; m++) {
      const int64_t row = b->row + m;
      if (row < s->row_begin || row >= s->row_end) continue;
      for (int64_t p = 0; p < s->panel_count; p++) {
        const int64_t n0 = (s->panel_begin + p * s->panel_step) * LANES - b->column;
        if (n0 < 0 || n0 >= b->width) continue;
        const float* u = s->rank ? f32_row(&e->u, row) + s->u_column : NULL;
        add_lora_panel(s, p, u, b->cur[m] + n0);
      }
    }
  }
}

/* x * Phi(x); Phi(-|x|) = q(t) exp(-x^2 / 2) with t = 1 / (1 + c |x|): Abramowitz and Stegun, 7.1.26. */
INLINE float gelu(float x) {
  const float t = 1.0f / fmaf(0.231641888f, fabsf(x), 1.0f);
  float q = 0.5307027145f;
  q = fmaf(q, t, -0.7265760135f);
  q = fmaf(q, t, 0.7107068705f);
  q = fmaf(q, t, -0.142248368f);
  q = fmaf(q, t, 0.127414796f);
  const float tail = (q * t) * ref_exp((x * x) * -0.5f);
  return x * (x < 0.0f ? tail : 1.0f - tail);
}

/* x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))) */
INLINE float gelu_tanh(float x) {
  const float inner = 0.7978845608f * fmaf(0.044715f * x, x * x, x);
  return (0.5f * x) * (1.0f + ref_tanh(inner));
}

INLINE float sigmoid(float x) { return 1.0f / (1.0f + ref_exp(-x)); }

INLINE float function_of(uint32_t function, float x) {
  const float positive = x > 0.0f ? x : 0.0f;
  switch (function) {
    case INFENG_FUNCTION_SILU:
      return ref_silu(x);
    case INFENG_FUNCTION_GELU:
      return gelu(x);
    case INFENG_FUNCTION_GELU_TANH:
      return gelu_tanh(x);
    case INFENG_FUNCTION_RELU2:
      return positive * positive;
    case INFENG_FUNCTION_SIGMOID:
      return sigmoid(x);
    default:
      return x;
  }
}

/* (up + 1) * (gate * sigmoid(a * gate)), gate at most b, up within b. */
INLINE float swiglu(float gate, float up, float a, float b) {
  gate = gate < b ? gate : b;
  up = up < b ? up : b;
  up = up > -b ? up : -b;
  return (up + 1.0f) * (gate * sigmoid(a * gate));
}

/* Panels alternate gate, up: cur'[16 p + i] = f(cur[32 p + i]) * cur[32 p + 16 + i]. */
CLONED static void gated_mul(block* b, const infeng_epilogue* e) {
  for (int64_t m = 0; m < b->rows; m++) {
    for (int64_t p = 0; p < b->width / (2 * LANES); p++) {
      float product[LANES];
      const float* gate = b->cur[m] + 2 * LANES * p;
      for (int i = 0; i < LANES; i++) {
        product[i] = e->function == INFENG_FUNCTION_SWIGLU ? swiglu(gate[i], gate[LANES + i], e->scalar, e->limit)
                                                           : function_of(e->function, gate[i]) * gate[LANES + i];
      }
      memcpy(b->cur[m] + LANES * p, product, sizeof product);
    }
  }
  b->column /= 2;
  b->width /= 2;
}

/* SCALE, SOFTCAP and ACTIVATE: each value by itself. */
CLONED static void each_value(block* b, const infeng_epilogue* e) {
  for (int64_t m = 0; m < b->rows; m++) {
    for (int64_t n = 0; n < b->width; n++) {
      float* cur = &b->cur[m][n];
      if (e->kind == INFENG_EPILOGUE_SCALE) *cur = *cur * e->scalar;
      if (e->kind == INFENG_EPILOGUE_SOFTCAP) *cur = e->scalar * ref_tanh(*cur / e->scalar);
      if (e->kind == INFENG_EPILOGUE_ACTIVATE) *cur = function_of(e->function, *cur);
    }
  }
}

/* cur = cur * f(matrix[m][n]) */
CLONED static void multiply(block* b, const infeng_tensor* matrix, uint32_t function) {
  const int64_t width = columns_of(b, matrix->shape[1]);
  for (int64_t m = 0; m < b->rows; m++) {
    const float* row = f32_row(matrix, b->row + m) + b->column;
    for (int64_t n = 0; n < width; n++) b->cur[m][n] = b->cur[m][n] * function_of(function, row[n]);
  }
}

void reference_finish_block(const infeng_args* args, const infeng_tensor* out, block* b) {
  for (uint32_t i = 0; i < args->epilogue_count; i++) {
    const infeng_epilogue* e = args->epilogues[i];
    switch (e->kind) {
      case INFENG_EPILOGUE_BIAS:
        add_bias(b, operand_of(e));
        break;
      case INFENG_EPILOGUE_LORA:
        add_lora(b, (const infeng_lora_epilogue*)e);
        break;
      case INFENG_EPILOGUE_ROW_SCALE:
        scale_rows(b, operand_of(e));
        break;
      case INFENG_EPILOGUE_RESIDUAL:
        add_residual(b, operand_of(e));
        break;
      case INFENG_EPILOGUE_GATED_MUL:
        gated_mul(b, e);
        break;
      case INFENG_EPILOGUE_QUANTIZE:
        if (is_row(e)) {
          memcpy(b->kept + b->column, b->cur[0], (size_t)b->width * sizeof(float));
          break;
        }
        for (int64_t m = 0; m < b->rows; m++) quantize_columns(act_of(e), b->row + m, b->column, b->cur[m], b->width);
        break;
      case INFENG_EPILOGUE_MUL:
        multiply(b, operand_of(e), e->function);
        break;
      default:
        each_value(b, e);
        break;
    }
  }
  if (!out->data) return;
  const int64_t width = columns_of(b, out->shape[1]);
  for (int64_t m = 0; m < b->rows && width > 0; m++) {
    memcpy(f32_row(out, b->row + m) + b->column, b->cur[m], (size_t)width * sizeof(float));
  }
}

/* By how much the list divides the width. */
static int64_t halves(const infeng_args* args) {
  for (uint32_t i = 0; i < args->epilogue_count; i++) {
    if (args->epilogues[i]->kind == INFENG_EPILOGUE_GATED_MUL) return 2;
  }
  return 1;
}

/* A tile is one row, read and written from left to right, so `out` may be `in` even if GATED_MUL halves the width.
 */
static int64_t epilogue_tiles(const infeng_args* args, int32_t phase) {
  (void)phase;
  return args->rows;
}

static infeng_status epilogue_run(const infeng_args* common, int32_t phase, int64_t first, int64_t last,
                                  infeng_worker* worker) {
  (void)phase;
  const infeng_epilogue_args* args = (const infeng_epilogue_args*)common;
  const infeng_status status = reference_check_list(common, worker);
  const int64_t step = BLOCK_COLUMNS, columns = args->in.shape[1];
  float* kept = worker->private_;
  for (int64_t row = first; row < last && status == INFENG_OK; row++) {
    for (int64_t column = 0; column < columns; column += step) {
      block b = {.row = row, .rows = 1, .column = column, .width = min_i64(step, columns - column), .kept = kept};
      memcpy(b.cur[0], f32_row(&args->in, row) + column, (size_t)b.width * sizeof(float));
      b.width = ceil_div(b.width, LANES) * LANES; /* whole panels; the padding is zero */
      reference_finish_block(common, &args->out, &b);
    }
    quantize_rows(common, row, columns / halves(common), columns, kept);
  }
  return status;
}

static int32_t epilogue_accepts(const infeng_problem* p) {
  return p->op == INFENG_OP_EPILOGUE && fuses_only(p, ALL_EPILOGUES);
}

KERNEL_WITH(reference_epilogue, INFENG_OP_EPILOGUE, "epilogue", ALL_EPILOGUES, HANDLES_LIST | FUNCTION(ROW),
            epilogue_accepts, row_workspace, epilogue_tiles, epilogue_run);
