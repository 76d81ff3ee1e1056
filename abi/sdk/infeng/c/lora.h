/* The step LORA in scalar C11: what adapters add to the result of an op, in any storage. The results are the bytes of
 * the reference kernels.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef INFENG_C_LORA_H
#define INFENG_C_LORA_H

#include <infeng/c/quantize.h>

/* Segment `index` of a list, whose structs may be longer than this header knows. */
INFENG_C_INLINE const infeng_lora_segment* infeng_segment(const infeng_lora_epilogue* e, int32_t index) {
  return (const infeng_lora_segment*)((const char*)e->segments + (size_t)e->segment_stride * (size_t)index);
}

/* The 16 values of rank row r of a panel of B as floats. */
INFENG_C_INLINE void infeng_lora_values(const infeng_lora_segment* s, int64_t panel, int64_t r, float* values) {
  const int64_t at = (panel * s->rank + r) * INFENG_C_LANES;
  /* INFENG_I8T4: 8 rank rows take 72 bytes, 16 bytes for the first and 8 bytes of nibbles for each other. */
  const uint8_t* block = (const uint8_t*)s->b + (panel * s->rank + r) / 8 * 72;
  const uint8_t* nibbles = block + 8 + r % 8 * 8;
  for (int n = 0; n < INFENG_C_LANES; n++) {
    if (s->dtype == INFENG_F32)
      values[n] = ((const float*)s->b)[at + n];
    else if (s->dtype == INFENG_BF16)
      values[n] = infeng_f32_of_bf16(((const uint16_t*)s->b)[at + n]);
    else if (s->dtype == INFENG_I8)
      values[n] = (float)((const int8_t*)s->b)[at + n];
    else if (r % 8 == 0)
      values[n] = (float)((const int8_t*)block)[n];
    else
      values[n] = (float)((n < 8 ? nibbles[n] & 15 : nibbles[n - 8] >> 4) - 8);
  }
}

/* Adds a panel of a segment to 16 outputs of one row: cur = fma(u[r], B[n][r], cur), r ascending. Integers have a sum
 * of their own, which is scaled once. `u` is not read if the rank is 0. */
INFENG_C_INLINE void infeng_add_lora_panel(const infeng_lora_segment* s, int64_t panel, const float* u, float* cur) {
  const int is_apart = s->rank > 0 && s->dtype != INFENG_F32 && s->dtype != INFENG_BF16;
  const int64_t first = panel * INFENG_C_LANES;
  float apart[INFENG_C_LANES] = {0}, *sum = is_apart ? apart : cur;
  for (int64_t r = 0; r < s->rank; r++) {
    float values[INFENG_C_LANES];
    infeng_lora_values(s, panel, r, values);
    for (int n = 0; n < INFENG_C_LANES; n++) sum[n] = fmaf(u[r], values[n], sum[n]);
  }
  for (int n = 0; n < INFENG_C_LANES; n++) {
    if (is_apart) cur[n] = fmaf(apart[n], infeng_f32_of_bf16(s->b_scale[first + n]), cur[n]);
    if (s->row_scale) cur[n] = cur[n] * s->row_scale[first + n];
    if (s->bias) cur[n] = cur[n] + s->bias[first + n];
  }
}

/* Applies all segments, in order, to `width` columns of row `row` from `column` on, both multiples of 16. */
INFENG_C_INLINE void infeng_add_lora(const infeng_lora_epilogue* e, int64_t row, int64_t column, int64_t width,
                                     float* cur) {
  for (int32_t i = 0; i < e->segment_count; i++) {
    const infeng_lora_segment* s = infeng_segment(e, i);
    if (row < s->row_begin || row >= s->row_end) continue;
    const float* u = s->rank > 0 ? infeng_f32_row(&e->u, row) + s->u_column : NULL;
    const int64_t before = column / INFENG_C_LANES - s->panel_begin; /* panels before the first of these columns */
    for (int64_t p = before > 0 ? (before + s->panel_step - 1) / s->panel_step : 0; p < s->panel_count; p++) {
      const int64_t at = (p * s->panel_step - before) * INFENG_C_LANES;
      if (at >= width) break;
      infeng_add_lora_panel(s, p, u, cur + at);
    }
  }
}

#endif /* INFENG_C_LORA_H */
