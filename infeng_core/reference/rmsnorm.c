/* rmsnorm: s = sum of x^2 over 16 lanes; r = 1 / sqrt(s / K + eps); y[i] = (x[i] * r) * w[i].
 * SPDX-License-Identifier: Apache-2.0 */
#include "common.h"

#define FUSES INFENG_EPILOGUE_BIT(INFENG_EPILOGUE_QUANTIZE)

static int64_t rmsnorm_tiles(const infeng_args* args, int32_t phase) {
  (void)phase;
  return args->rows;
}

/* The input is finished group by group, so `out` may be `x` and needs no scratch row. */
CLONED static void rmsnorm_row(const infeng_rmsnorm_args* args, int64_t row) {
  const int64_t k = args->x.shape[1];
  const float* x = f32_row(&args->x, args->row_index ? args->row_index[row] : row);
  const float* w = f32_row(&args->weight, 0);
  float lanes[LANES] = {0};
  for (int64_t i = 0; i < k; i++) lanes[i % LANES] = fmaf(x[i], x[i], lanes[i % LANES]);
  const float r = 1.0f / sqrtf(ref_tree(lanes) / (float)k + args->eps);
  for (int64_t column = 0; column < k; column += GROUP) {
    const int64_t width = min_i64(GROUP, k - column);
    float y[GROUP];
    for (int64_t i = 0; i < width; i++) y[i] = (x[column + i] * r) * w[column + i];
    const infeng_epilogue* e = args->common.epilogues;
    for (uint32_t i = 0; i < args->common.epilogue_count; i++, e = next_epilogue(e)) {
      quantize_columns(&e->act, row, column, y, width);
    }
    if (args->out.data) memcpy(f32_row(&args->out, row) + column, y, (size_t)width * sizeof(float));
  }
}

static infeng_status rmsnorm_run(const infeng_args* common, int32_t phase, int64_t first, int64_t last,
                                 infeng_worker* worker) {
  (void)phase;
  const infeng_epilogue* e = common->epilogues;
  for (uint32_t i = 0; i < common->epilogue_count; i++, e = next_epilogue(e)) {
    if (e->kind != INFENG_EPILOGUE_QUANTIZE) return fail(worker, INFENG_UNIMPLEMENTED, "rmsnorm fuses quantize only");
  }
  for (int64_t row = first; row < last; row++) rmsnorm_row((const infeng_rmsnorm_args*)common, row);
  return INFENG_OK;
}

static int32_t rmsnorm_accepts(const infeng_problem* p) { return p->op == INFENG_OP_RMSNORM && fuses_only(p, FUSES); }

KERNEL(reference_rmsnorm, INFENG_OP_RMSNORM, "rmsnorm", FUSES, rmsnorm_accepts, rmsnorm_tiles, rmsnorm_run);
