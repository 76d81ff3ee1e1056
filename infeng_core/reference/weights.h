/* Reading packed weights: one group of 64 inputs of one panel, spread out as [k][16 outputs]. docs/format.md draws the
 * bytes. SPDX-License-Identifier: Apache-2.0 */
#ifndef INFENG_REFERENCE_WEIGHTS_H
#define INFENG_REFERENCE_WEIGHTS_H

#include "common.h"

/* DO(ARG, suffix of its functions, number, suffix of its kernels, scales of a group) for every format of the header:
 * integers, which have group_<suffix>, and floats, which have column_<suffix>. */
#define INT_FORMATS(DO, ARG)                              \
  DO(ARG, int8_row, INFENG_WEIGHT_INT8_ROW, "int8row", 1) \
  DO(ARG, int4_g64, INFENG_WEIGHT_INT4_G64, "int4g64", 1) \
  DO(ARG, int4_g32, INFENG_WEIGHT_INT4_G32, "int4g32", 2)
#define FLOAT_FORMATS(DO, ARG)              \
  DO(ARG, f32, INFENG_WEIGHT_F32, "f32", 0) \
  DO(ARG, bf16, INFENG_WEIGHT_BF16, "bf16", 0)
#define WEIGHT_FORMATS(DO, ARG) FLOAT_FORMATS(DO, ARG) INT_FORMATS(DO, ARG)

/* A group of an integer format: w[k] are 16 outputs; scale[s] belongs to inputs [s * 64 / steps, (s + 1) * 64 / steps).
 */
typedef struct int_group {
  int8_t w[GROUP][LANES];
  float scale[2][LANES];
} int_group;

typedef void (*int_group_fn)(const uint8_t* panel, int64_t g, int_group* out);

/* A group by `read`, or by the library that brought the format where there is none. */
INLINE void read_group(const infeng_weight* weight, const uint8_t* panel, int64_t g, int_group_fn read,
                       int_group* out) {
  if (read) {
    read(panel, g, out);
  } else {
    weight->foreign->unpack(panel, g, NULL, out->w, out->scale);
  }
}

INLINE void read_f16_scales(const uint8_t* line, float scale[LANES]) {
  for (int n = 0; n < LANES; n++) {
    uint16_t half;
    memcpy(&half, line + 2 * n, 2);
    scale[n] = f32_from_f16(half);
  }
}

/* `lines` lines of nibbles: byte 4n + j of line l holds input 4l + j below and input 4 (l + lines) + j above. */
INLINE void read_nibbles(const uint8_t* data, int lines, int8_t w[][LANES]) {
  for (int l = 0; l < lines; l++) {
    for (int j = 0; j < 4; j++) {
      for (int n = 0; n < LANES; n++) {
        const uint8_t byte = data[64 * l + 4 * n + j];
        w[4 * l + j][n] = (int8_t)((byte & 15) - 8);
        w[4 * (l + lines) + j][n] = (int8_t)((byte >> 4) - 8);
      }
    }
  }
}

/* 16 f32 scales, then lines of 4 inputs x 16 outputs, q + 128. */
INLINE void group_int8_row(const uint8_t* panel, int64_t g, int_group* out) {
  const uint8_t* data = panel + 64 + g * (GROUP * LANES);
  memcpy(out->scale[0], panel, sizeof out->scale[0]);
  for (int l = 0; l < GROUP / 4; l++) {
    for (int j = 0; j < 4; j++) {
      for (int n = 0; n < LANES; n++) out->w[4 * l + j][n] = (int8_t)(data[64 * l + 4 * n + j] - 128);
    }
  }
}

/* Superblocks of 128 inputs: a line with the scales of two groups, then 8 lines of nibbles for each. */
INLINE void group_int4_g64(const uint8_t* panel, int64_t g, int_group* out) {
  const uint8_t* superblock = panel + (g / 2) * (64 + 1024);
  read_f16_scales(superblock + (g % 2) * 32, out->scale[0]);
  read_nibbles(superblock + 64 + (g % 2) * 512, 8, out->w);
}

/* Superblocks of 64 inputs: a line with the scales of two groups of 32, then 4 lines of nibbles for each. */
INLINE void group_int4_g32(const uint8_t* panel, int64_t g, int_group* out) {
  const uint8_t* superblock = panel + g * (64 + 512);
  for (int h = 0; h < 2; h++) {
    read_f16_scales(superblock + h * 32, out->scale[h]);
    read_nibbles(superblock + 64 + h * 256, 4, out->w + 32 * h);
  }
}

/* Inputs of one k of a float panel, widened. */
INLINE void column_f32(const void* panel, int64_t k, float w[LANES]) {
  memcpy(w, (const float*)panel + k * LANES, LANES * sizeof(float));
}

INLINE void column_bf16(const void* panel, int64_t k, float w[LANES]) {
  const uint16_t* pairs = (const uint16_t*)panel + (k / 2) * (2 * LANES) + k % 2;
  for (int n = 0; n < LANES; n++) w[n] = f32_from_bf16(pairs[2 * n]);
}

#endif
