/* linear in plain C11, exact, for f32 and int8-row weights: y = x W^T, then all steps that the engine can ask for, LORA
 * included, by the SDK's helpers for C. SPDX-License-Identifier: Apache-2.0 */
#include <infeng/c/epilogue.h>

/* 16 outputs of one row over f32 weights, [k][16 outputs]: one chain per output, k ascending. */
INFENG_C_INLINE void multiply_f32(const infeng_linear_args* args, const void* panel, int64_t row, float* out) {
  const float *x = infeng_f32_row(&args->in->x, row), *w = (const float*)panel;
  for (int n = 0; n < 16; n++) out[n] = 0.0f;
  for (int64_t k = 0; k < args->weight->k; k++)
    for (int n = 0; n < 16; n++) out[n] = fmaf(x[k], w[k * 16 + n], out[n]);
}

/* The same over int8-row weights, 16 scales and then [k / 4][16 outputs][4 k] of q + 128: exact sums of 64 inputs,
 * which are scaled by the product of both scales. */
INFENG_C_INLINE void multiply_int8(const infeng_linear_args* args, const void* panel, int64_t row, float* out) {
  const float *scales = (const float*)panel, *xscales = infeng_f32_row(&args->in->scale, row);
  const int8_t* q = infeng_i8_row(&args->in->q, row);
  const uint8_t* w = (const uint8_t*)panel + 64;
  for (int n = 0; n < 16; n++) out[n] = 0.0f;
  for (int64_t group = 0; group * 64 < args->weight->k; group++) {
    int32_t sum[16] = {0};
    for (int k = 0; k < 64; k++, q++)
      for (int n = 0; n < 16; n++) sum[n] += *q * (w[(group * 16 + k / 4) * 64 + n * 4 + k % 4] - 128);
    for (int n = 0; n < 16; n++) out[n] = fmaf((float)sum[n], scales[n] * xscales[group], out[n]);
  }
}

/* A tile is so many outputs that it has whole groups to quantize. */
static int64_t tiles(const infeng_args* common, int32_t phase) {
  (void)phase;
  const int64_t columns = infeng_tile_columns(common), all = ((const infeng_linear_args*)common)->weight->panels * 16;
  return common->rows == 0 ? 0 : (all + columns - 1) / columns;
}

INFENG_C_CLONED static infeng_status run(const infeng_args* common, int32_t phase, int64_t first, int64_t last,
                                         infeng_worker* worker) {
  (void)phase;
  const infeng_linear_args* args = (const infeng_linear_args*)common;
  const infeng_weight* weight = args->weight;
  const int64_t most = infeng_tile_columns(common), all = weight->panels * 16;
  if (weight->layout != 0) return infeng_fail(worker, INFENG_INVALID_ARGUMENT, "the weight has another layout");
  const infeng_status status = infeng_check_list(common, worker);
  for (int64_t tile = first; tile < last && status == INFENG_OK; tile++) {
    const int64_t begin = tile * most, width = infeng_min(most, all - begin);
    for (int64_t row = 0; row < common->rows; row++) {
      float cur[INFENG_C_MOST_COLUMNS];
      for (int64_t c = 0; c < width; c += 16) {
        const char* panel = (const char*)weight->data + (begin + c) / 16 * weight->panel_bytes;
        if (weight->format == INFENG_WEIGHT_F32)
          multiply_f32(args, panel, row, cur + c);
        else
          multiply_int8(args, panel, row, cur + c);
      }
      infeng_finish(common, &args->out, row, begin, width, cur, NULL);
    }
  }
  return status;
}

static int32_t accepts_f32(const infeng_problem* p) {
  return p->op == INFENG_OP_LINEAR && p->weight_format == INFENG_WEIGHT_F32 && p->act_format == INFENG_ACT_F32 &&
         infeng_fuses(p, INFENG_C_FUSES);
}

static int32_t accepts_int8(const infeng_problem* p) {
  return p->op == INFENG_OP_LINEAR && p->weight_format == INFENG_WEIGHT_INT8_ROW &&
         p->act_format == INFENG_ACT_INT8_G64 && infeng_fuses(p, INFENG_C_FUSES);
}

const infeng_kernel example_linear_f32 = {.struct_size = sizeof(infeng_kernel),
                                          .op = INFENG_OP_LINEAR,
                                          .name = "linear_f32_c",
                                          .features = "",
                                          .numerics = INFENG_NUMERICS_EXACT,
                                          .kind = INFENG_KIND_TILES,
                                          .fuses = INFENG_C_FUSES,
                                          .handles = INFENG_C_HANDLES,
                                          .accepts = accepts_f32,
                                          .tiles = tiles,
                                          .run = run};

const infeng_kernel example_linear_int8 = {.struct_size = sizeof(infeng_kernel),
                                           .op = INFENG_OP_LINEAR,
                                           .name = "linear_int8row_c",
                                           .features = "",
                                           .numerics = INFENG_NUMERICS_EXACT,
                                           .kind = INFENG_KIND_TILES,
                                           .fuses = INFENG_C_FUSES,
                                           .handles = INFENG_C_HANDLES,
                                           .accepts = accepts_int8,
                                           .tiles = tiles,
                                           .run = run};
