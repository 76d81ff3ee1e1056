/* rmsnorm: s = sum of x^2 over 16 lanes; r = 1 / sqrt(s / K + eps); y[i] = (x[i] * r) * (offset + w[i]). An offset of 0
 * is not added, and without a weight y[i] = x[i] * r.
 * SPDX-License-Identifier: Apache-2.0 */
#include "common.h"

#define FUSES INFENG_EPILOGUE_BIT(INFENG_EPILOGUE_QUANTIZE)

static int64_t rmsnorm_tiles(const infeng_args* args, int32_t phase) {
  (void)phase;
  return args->rows;
}

/* The vector is finished group by group, so `out` may be `x`. `kept` takes the row for steps that quantize it whole. */
CLONED static void normalize(const infeng_rmsnorm_args* args, int64_t row, const float* x, int64_t k, float* out,
                             float* kept) {
  const float* w = args->weight.data;
  const float r = ref_rms(x, k, args->eps);
  for (int64_t column = 0; column < k; column += WIDEST_GROUP) {
    const int64_t width = min_i64(WIDEST_GROUP, k - column);
    float y[WIDEST_GROUP];
    for (int64_t i = 0; i < width; i++) {
      y[i] = x[column + i] * r;
      if (w) y[i] = y[i] * (args->offset != 0.0f ? args->offset + w[column + i] : w[column + i]);
    }
    quantize_part(&args->common, row, column, width, y, kept);
    if (out) memcpy(out + column, y, (size_t)width * sizeof(float));
  }
  quantize_rows(&args->common, row, k, k, kept);
}

static void rmsnorm_row(const infeng_rmsnorm_args* args, int64_t row, float* kept) {
  const infeng_tensor* x = &args->x;
  const int64_t heads = x->ndim == 3 ? x->shape[1] : 1;
  const float* in = f32_row(x, args->row_index ? args->row_index[row] : row);
  float* out = args->out.data ? f32_row(&args->out, row) : NULL;
  for (int64_t h = 0; h < heads; h++) {
    float* to = out ? out + h * args->out.strides[1] : NULL;
    normalize(args, row, in + h * x->strides[1], x->shape[x->ndim - 1], to, kept);
  }
}

static infeng_status rmsnorm_run(const infeng_args* common, int32_t phase, int64_t first, int64_t last,
                                 infeng_worker* worker) {
  (void)phase;
  const infeng_rmsnorm_args* args = (const infeng_rmsnorm_args*)common;
  for (uint32_t i = 0; i < common->epilogue_count; i++) {
    if (common->epilogues[i]->kind != INFENG_EPILOGUE_QUANTIZE || args->x.ndim == 3) {
      return fail(worker, INFENG_UNIMPLEMENTED, "rmsnorm fuses quantize only, and nothing where x has heads");
    }
  }
  for (int64_t row = first; row < last; row++) rmsnorm_row(args, row, worker->private_);
  return INFENG_OK;
}

static int32_t rmsnorm_accepts(const infeng_problem* p) {
  return p->op == INFENG_OP_RMSNORM && fuses_only(p, p->needs & NEED(NORM_HEADS) ? 0 : FUSES);
}

KERNEL_WITH(reference_rmsnorm, INFENG_OP_RMSNORM, "rmsnorm", FUSES,
            NEED(ROW_GATHER) | NEED(NORM_HEADS) | NEED(NORM_PLAIN) | NEED(NORM_OFFSET) |
                INFENG_NEED_BIT(INFENG_NEED_FUNCTION(INFENG_FUNCTION_WIDE)) |
                INFENG_NEED_BIT(INFENG_NEED_FUNCTION(INFENG_FUNCTION_ROW)),
            rmsnorm_accepts, row_workspace, rmsnorm_tiles, rmsnorm_run);
