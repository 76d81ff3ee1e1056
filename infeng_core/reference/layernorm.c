/* layernorm: mean = sum of x / K; d = x - mean; s = sum of d^2; r = 1 / sqrt(s / K + eps); y[i] = fma(d[i] * r, w[i],
 * b[i]). Both sums are over 16 lanes.
 * SPDX-License-Identifier: Apache-2.0 */
#include "common.h"

#define FUSES INFENG_EPILOGUE_BIT(INFENG_EPILOGUE_QUANTIZE)

static int64_t layernorm_tiles(const infeng_args* args, int32_t phase) {
  (void)phase;
  return args->rows;
}

INLINE float mean_of(const float* x, int64_t k) {
  float lanes[LANES] = {0};
  for (int64_t i = 0; i < k; i++) lanes[i % LANES] += x[i];
  return ref_tree(lanes) / (float)k;
}

/* 1 / sqrt(variance + eps). */
INLINE float inverse_deviation(const float* x, int64_t k, float mean, float eps) {
  float lanes[LANES] = {0};
  for (int64_t i = 0; i < k; i++) {
    const float d = x[i] - mean;
    lanes[i % LANES] = fmaf(d, d, lanes[i % LANES]);
  }
  return 1.0f / sqrtf(ref_tree(lanes) / (float)k + eps);
}

/* The row is finished group by group, so `out` may be `x`. `kept` takes the row for steps that quantize it whole. */
CLONED static void layernorm_row(const infeng_layernorm_args* args, int64_t row, float* kept) {
  const int64_t k = args->x.shape[1];
  const float* x = f32_row(&args->x, args->row_index ? args->row_index[row] : row);
  const float *w = args->weight.data, *b = args->bias.data;
  float* out = args->out.data ? f32_row(&args->out, row) : NULL;
  const float mean = mean_of(x, k);
  const float r = inverse_deviation(x, k, mean, args->eps);
  for (int64_t column = 0; column < k; column += WIDEST_GROUP) {
    const int64_t width = min_i64(WIDEST_GROUP, k - column);
    float y[WIDEST_GROUP];
    for (int64_t i = 0; i < width; i++) y[i] = fmaf((x[column + i] - mean) * r, w[column + i], b[column + i]);
    quantize_part(&args->common, row, column, width, y, kept);
    if (out) memcpy(out + column, y, (size_t)width * sizeof(float));
  }
  quantize_rows(&args->common, row, k, k, kept);
}

static infeng_status layernorm_run(const infeng_args* common, int32_t phase, int64_t first, int64_t last,
                                   infeng_worker* worker) {
  (void)phase;
  for (uint32_t i = 0; i < common->epilogue_count; i++) {
    if (common->epilogues[i]->kind != INFENG_EPILOGUE_QUANTIZE)
      return fail(worker, INFENG_UNIMPLEMENTED, "layernorm fuses quantize only");
  }
  for (int64_t row = first; row < last; row++)
    layernorm_row((const infeng_layernorm_args*)common, row, worker->private_);
  return INFENG_OK;
}

static int32_t layernorm_accepts(const infeng_problem* p) {
  return p->op == INFENG_OP_LAYERNORM && fuses_only(p, FUSES);
}

KERNEL_WITH(reference_layernorm, INFENG_OP_LAYERNORM, "layernorm", FUSES,
            NEED(ROW_GATHER) | INFENG_NEED_BIT(INFENG_NEED_FUNCTION(INFENG_FUNCTION_WIDE)) |
                INFENG_NEED_BIT(INFENG_NEED_FUNCTION(INFENG_FUNCTION_ROW)),
            layernorm_accepts, row_workspace, layernorm_tiles, layernorm_run);
