/* rope: rotates the pairs (i, i + rot/2) of every head of q and k in place, by the angle of the row's position. Heads
 * with a norm weight are normalized first, and q is scaled by its position last.
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

/* x[i] = (x[i] * r) * w[i] */
CLONED static void norm(float* head, const float* w, int64_t size, float eps) {
  const float r = ref_rms(head, size, eps);
  for (int64_t i = 0; i < size; i++) head[i] = (head[i] * r) * w[i];
}

static void rotate_heads(const infeng_rope_args* args, const infeng_tensor* x, int64_t row, const float* weight,
                         const float* scale) {
  if (!x->data) return;
  const int64_t position = args->positions[row], half = args->cos.shape[1], size = x->shape[2];
  for (int64_t h = 0; h < x->shape[1]; h++) {
    float* head = f32_row(x, row) + h * x->strides[1];
    if (weight) norm(head, weight, size, args->eps);
    rotate(head, f32_row(&args->cos, position), f32_row(&args->sin, position), half);
    for (int64_t i = 0; i < size && scale; i++) head[i] = head[i] * scale[position];
  }
}

static infeng_status rope_run(const infeng_args* common, int32_t phase, int64_t first, int64_t last,
                              infeng_worker* worker) {
  (void)phase;
  const infeng_rope_args* args = (const infeng_rope_args*)common;
  for (int64_t row = first; row < last; row++) {
    const int64_t position = args->positions[row];
    if (position < 0 || position >= args->cos.shape[0]) {
      return fail(worker, INFENG_INVALID_ARGUMENT, "position lies outside the rope tables");
    }
    rotate_heads(args, &args->q, row, args->q_norm, args->q_scale);
    rotate_heads(args, &args->k, row, args->k_norm, NULL);
  }
  return INFENG_OK;
}

static int32_t rope_accepts(const infeng_problem* p) { return p->op == INFENG_OP_ROPE && fuses_only(p, 0); }

KERNEL(reference_rope, INFENG_OP_ROPE, "rope", 0, NEED(ROPE_NORM) | NEED(ROPE_SCALE), rope_accepts, rope_tiles,
       rope_run);
