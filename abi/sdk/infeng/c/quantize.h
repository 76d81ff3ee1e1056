/* Rounding of activations to int8 in scalar C11, as docs/numerics.md defines it: groups of 64, 128 and 256 columns, and
 * whole rows, rotated or not. The results are the bytes of the reference kernels.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef INFENG_C_QUANTIZE_H
#define INFENG_C_QUANTIZE_H

#include <infeng/c/functions.h>

enum {
  INFENG_C_LANES = 16,        /* outputs of a panel */
  INFENG_C_GROUP = 64,        /* columns with a scale and a sum in memory */
  INFENG_C_WIDEST_GROUP = 256 /* columns with the same scale, unless it is that of a row */
};

INFENG_C_INLINE int64_t infeng_min(int64_t a, int64_t b) { return a < b ? a : b; }

/* Row `row` of a matrix. */
INFENG_C_INLINE float* infeng_f32_row(const infeng_tensor* t, int64_t row) {
  return (float*)t->data + row * t->strides[0];
}
INFENG_C_INLINE int8_t* infeng_i8_row(const infeng_tensor* t, int64_t row) {
  return (int8_t*)t->data + row * t->strides[0];
}
INFENG_C_INLINE int32_t* infeng_i32_row(const infeng_tensor* t, int64_t row) {
  return (int32_t*)t->data + row * t->strides[0];
}

INFENG_C_INLINE float infeng_largest_magnitude(const float* x, int64_t count) {
  float largest = 0.0f;
  for (int64_t i = 0; i < count; i++) {
    const float size = fabsf(x[i]);
    if (size > largest || size != size) largest = size; /* NaN stays, so that the scale shows it */
  }
  return largest;
}

/* H x in blocks of `block` values, a power of two, in place: the Hadamard matrix by its butterflies, nearest first. */
INFENG_C_INLINE void infeng_hadamard(float* x, int64_t count, int64_t block) {
  for (int64_t step = 1; step < block; step *= 2) {
    for (int64_t i = 0; i < count; i++) {
      if (i & step) continue;
      const float sum = x[i] + x[i + step], difference = x[i] - x[i + step];
      x[i] = sum;
      x[i + step] = difference;
    }
  }
}

/* H x / 8 in blocks of 64 or 128, H x / 16 in blocks of 256, in place. */
INFENG_C_INLINE void infeng_rotate(float* x, int64_t count, int64_t block) {
  const float factor = block == 256 ? 0.0625f : 0.125f;
  for (int64_t i = 0; i < count; i++) x[i] = x[i] * factor;
  infeng_hadamard(x, count, block);
}

/* Writes the 64 q of group `group` of a row, whose first `count` are x under the scale of `amax` and the others 0, the
 * scale and the sum of q. */
INFENG_C_INLINE void infeng_quantize_group(const infeng_activation* act, int64_t row, int64_t group, const float* x,
                                           int64_t count, float amax) {
  int8_t* q = infeng_i8_row(&act->q, row) + group * INFENG_C_GROUP;
  const int is_zero = amax < 0x1p-100f;
  const float inverse = is_zero ? 0.0f : 127.0f / amax;
  int32_t sum = 0;
  for (int64_t i = 0; i < INFENG_C_GROUP; i++) {
    float value = i < count && !is_zero ? rintf(x[i] * inverse) : 0.0f;
    if (!(value < 127.0f)) value = 127.0f;
    if (!(value > -127.0f)) value = -127.0f;
    q[i] = (int8_t)value;
    sum += q[i];
  }
  infeng_f32_row(&act->scale, row)[group] = is_zero ? 0.0f : amax / 127.0f;
  infeng_i32_row(&act->sum, row)[group] = sum;
}

/* Quantizes columns [column, column + width) of a row in the activation's groups of 64, 128 or 256, rotated if the
 * activation is. `column` is a multiple of the group; x is unchanged. */
INFENG_C_INLINE void infeng_quantize_columns(const infeng_activation* act, int64_t row, int64_t column, const float* x,
                                             int64_t width) {
  for (int64_t begin = 0; begin < width; begin += act->group) {
    const int64_t wide = infeng_min(act->group, width - begin);
    float y[INFENG_C_WIDEST_GROUP];
    memcpy(y, x + begin, (size_t)wide * sizeof *y);
    if (act->rotated) infeng_rotate(y, wide, INFENG_C_GROUP);
    const float amax = infeng_largest_magnitude(y, wide);
    for (int64_t c = 0; c < wide; c += INFENG_C_GROUP)
      infeng_quantize_group(act, row, (column + begin + c) / INFENG_C_GROUP, y + c,
                            infeng_min(INFENG_C_GROUP, wide - c), amax);
  }
}

/* Quantizes a row of k columns under one scale. If the activation is rotated, so is x. */
INFENG_C_INLINE void infeng_quantize_row(const infeng_activation* act, int64_t row, float* x, int64_t k) {
  if (act->rotated) infeng_rotate(x, k, (int64_t)act->rotated);
  const float amax = infeng_largest_magnitude(x, k);
  for (int64_t c = 0; c < k; c += INFENG_C_GROUP)
    infeng_quantize_group(act, row, c / INFENG_C_GROUP, x + c, infeng_min(INFENG_C_GROUP, k - c), amax);
}

#endif /* INFENG_C_QUANTIZE_H */
