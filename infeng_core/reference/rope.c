/* rope: rotates the pairs (i, i + rot/2) of every head of q and k in place, by the angle of the row's position.
 * SPDX-License-Identifier: Apache-2.0 */
#include "common.h"

static int64_t rope_tiles(const infeng_args* args, int32_t phase) {
  (void)phase;
  return args->rows;
}

/* a' = fma(a, c, -(b * s)); b' = fma(b, c, a * s) */
CLONED static void rotate(float* head, const float* c, const float* s, int64_t half) {
  for (int64_t i = 0; i < half; i++) {
    const float a = head[i];
    const float b = head[i + half];
    const float bs = b * s[i];
    const float as = a * s[i];
    head[i] = fmaf(a, c[i], -bs);
    head[i + half] = fmaf(b, c[i], as);
  }
}

static void rotate_heads(const infeng_tensor* x, int64_t row, const float* c, const float* s, int64_t half) {
  if (!x->data) return;
  for (int64_t h = 0; h < x->shape[1]; h++) rotate(f32_row(x, row) + h * x->strides[1], c, s, half);
}

static infeng_status rope_run(const infeng_args* common, int32_t phase, int64_t first, int64_t last,
                              infeng_worker* worker) {
  (void)phase;
  const infeng_rope_args* args = (const infeng_rope_args*)common;
  const int64_t half = args->cos.shape[1];
  for (int64_t row = first; row < last; row++) {
    const int64_t position = args->positions[row];
    if (position < 0 || position >= args->cos.shape[0]) {
      return fail(worker, INFENG_INVALID_ARGUMENT, "position lies outside the rope tables");
    }
    const float* c = f32_row(&args->cos, position);
    const float* s = f32_row(&args->sin, position);
    rotate_heads(&args->q, row, c, s, half);
    rotate_heads(&args->k, row, c, s, half);
  }
  return INFENG_OK;
}

static int32_t rope_accepts(const infeng_problem* p) { return p->op == INFENG_OP_ROPE && fuses_only(p, 0); }

KERNEL(reference_rope, INFENG_OP_ROPE, "rope", 0, rope_accepts, rope_tiles, rope_run);
