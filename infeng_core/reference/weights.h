/* Reads packed weights: a group of 64 inputs of one panel becomes [k][16 outputs]. docs/format.md draws the bytes.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef INFENG_REFERENCE_WEIGHTS_H
#define INFENG_REFERENCE_WEIGHTS_H

#include "common.h"

/* DO(ARG, suffix of its functions, number, suffix of its kernels, scales of a group) for every format of the header:
 * integers, read by group_<suffix>, and floats, read by column_<suffix>. With sub-scales, the scale is that of the
 * output and is applied at the end. */
#define SCALED_FORMATS(DO, ARG)                           \
  DO(ARG, int8_row, INFENG_WEIGHT_INT8_ROW, "int8row", 1) \
  DO(ARG, int8_g32, INFENG_WEIGHT_INT8_G32, "int8g32", 2) \
  DO(ARG, int4_g64, INFENG_WEIGHT_INT4_G64, "int4g64", 1) \
  DO(ARG, int4_g32, INFENG_WEIGHT_INT4_G32, "int4g32", 2)
#define SUB_SCALED_FORMATS(DO, ARG)                       \
  DO(ARG, int4_p32, INFENG_WEIGHT_INT4_P32, "int4p32", 1) \
  DO(ARG, int5_p32, INFENG_WEIGHT_INT5_P32, "int5p32", 1) \
  DO(ARG, int6_p32, INFENG_WEIGHT_INT6_P32, "int6p32", 1)
#define INT_FORMATS(DO, ARG) SCALED_FORMATS(DO, ARG) SUB_SCALED_FORMATS(DO, ARG)
/* DO(ARG, suffix of its kernels' names here, number, suffix of its kernels, inputs of a superblock): integers with
 * sub-scales and minima. */
#define AFFINE_FORMATS(DO, ARG)                                \
  DO(ARG, int4_a256, INFENG_WEIGHT_INT4_A256, "int4a256", 256) \
  DO(ARG, int4_a128, INFENG_WEIGHT_INT4_A128, "int4a128", 128)
#define FLOAT_FORMATS(DO, ARG)              \
  DO(ARG, f32, INFENG_WEIGHT_F32, "f32", 0) \
  DO(ARG, bf16, INFENG_WEIGHT_BF16, "bf16", 0)
#define WEIGHT_FORMATS(DO, ARG) FLOAT_FORMATS(DO, ARG) INT_FORMATS(DO, ARG) AFFINE_FORMATS(DO, ARG)

/* A group of an integer format: w[k] are 16 outputs; scale[s] belongs to inputs [s * 64 / steps, (s + 1) * 64 / steps).
 */
typedef struct int_group {
  int8_t w[GROUP][LANES];
  float scale[2][LANES];
} int_group;

typedef void (*int_group_fn)(const uint8_t* panel, int64_t g, int_group* out);

INLINE void read_f16_scales(const uint8_t* line, float scale[LANES]) {
  for (int n = 0; n < LANES; n++) {
    uint16_t half;
    memcpy(&half, line + 2 * n, 2);
    scale[n] = f32_from_f16(half);
  }
}

/* `lines` lines of nibbles: byte 4n + j of line l holds input 4l + j in the low nibble, 4 (l + lines) + j in the high.
 * */
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

/* A group's 16 lines of bytes: byte 4n + j of line l holds q + 128 of input 4l + j. */
INLINE void read_bytes(const uint8_t* data, int8_t w[][LANES]) {
  for (int l = 0; l < GROUP / 4; l++) {
    for (int j = 0; j < 4; j++) {
      for (int n = 0; n < LANES; n++) w[4 * l + j][n] = (int8_t)(data[64 * l + 4 * n + j] - 128);
    }
  }
}

/* 16 f32 scales, then lines of bytes. */
INLINE void group_int8_row(const uint8_t* panel, int64_t g, int_group* out) {
  memcpy(out->scale[0], panel, sizeof out->scale[0]);
  read_bytes(panel + 64 + g * (GROUP * LANES), out->w);
}

/* For each 64 inputs a line with the scales of two groups of 32, then lines of bytes. */
INLINE void group_int8_g32(const uint8_t* panel, int64_t g, int_group* out) {
  const uint8_t* superblock = panel + g * (64 + GROUP * LANES);
  for (int h = 0; h < 2; h++) read_f16_scales(superblock + h * 32, out->scale[h]);
  read_bytes(superblock + 64, out->w);
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

/* Unit k of 32 of one output. Byte 4n + j of line l < 4 holds the nibble of input 4l + j in its low half and that of
 * input 4 (l + 4) + j in its high half. Lines of upper bits follow: one bit of input 4l + j is at bit l of one line, or
 * two bits are at bit 2 (l % 4) of line l / 4. */
INLINE int unit_p32(const uint8_t* lines, int bits, int k, int n) {
  const int l = k / 4, at = 4 * n + k % 4;
  const int nibble = lines[64 * (l % 4) + at] >> (l < 4 ? 0 : 4) & 15;
  if (bits == 4) return nibble;
  if (bits == 5) return nibble | (lines[64 * 4 + at] >> l & 1) << 4;
  return nibble | (lines[64 * (4 + l / 4) + at] >> 2 * (l % 4) & 3) << 4;
}

/* w = s (u - z): 16 f32 scales, then superblocks of 128 inputs. A superblock is a line whose byte 4n + 2 (h % 2) + h /
 * 2 holds s - 1 in its lower 8 - bits bits and z above for quarter h of output n, then `bits` lines for each quarter.
 * */
INLINE void group_p32(const uint8_t* panel, int64_t g, int bits, int_group* out) {
  const uint8_t* superblock = panel + 64 + (g / 2) * (64 + 4 * 64 * bits);
  memcpy(out->scale[0], panel, sizeof out->scale[0]);
  for (int i = 0; i < 2; i++) {
    const int h = (int)(g % 2) * 2 + i;
    const uint8_t* lines = superblock + 64 + h * 64 * bits;
    for (int n = 0; n < LANES; n++) {
      const uint8_t byte = superblock[4 * n + 2 * (h % 2) + h / 2];
      const int s = (byte & ((1 << (8 - bits)) - 1)) + 1, z = byte >> (8 - bits);
      for (int k = 0; k < 32; k++) out->w[32 * i + k][n] = (int8_t)(s * (unit_p32(lines, bits, k, n) - z));
    }
  }
}
INLINE void group_int4_p32(const uint8_t* panel, int64_t g, int_group* out) { group_p32(panel, g, 4, out); }
INLINE void group_int5_p32(const uint8_t* panel, int64_t g, int_group* out) { group_p32(panel, g, 5, out); }
INLINE void group_int6_p32(const uint8_t* panel, int64_t g, int_group* out) { group_p32(panel, g, 6, out); }

/* Superblocks of 256 or 128 inputs: a line with 16 d and 16 e as fp16; then for each 64 inputs a line whose bytes 4n +
 * h and 4n + 2 + h are s and t of half h of output n, and 4 lines of nibbles for each half. A weight is d * (s u) - e *
 * t. */
INLINE void group_affine(const uint8_t* panel, int64_t g, int64_t superblock, infeng_block* out) {
  const int64_t groups = superblock / GROUP, lines = 9; /* of a group */
  const uint8_t* block = panel + g / groups * (64 * (1 + lines * groups));
  const uint8_t* group = block + 64 * (1 + lines * (g % groups));
  read_f16_scales(block, out->scale[0]);
  read_f16_scales(block + 32, out->minimum[0]);
  for (int h = 0; h < 2; h++) {
    for (int n = 0; n < LANES; n++) {
      out->sub_scale[h][n] = group[4 * n + h];
      out->sub_minimum[h][n] = group[4 * n + 2 + h];
      for (int k = 0; k < 32; k++) out->q[32 * h + k][n] = (int8_t)unit_p32(group + 64 + 256 * h, 4, k, n);
    }
  }
}

#define MOST_STEPS 4 /* of 64 inputs */

/* Inputs of a step of a library's format: gcd(group, 64), a power of 2 from 16 on. */
INLINE int step_of(const infeng_format* format) {
  const int bit = (int)(format->group & (0u - format->group));
  return bit < GROUP ? bit : GROUP;
}

/* Reads 64 inputs of a format that a library registered, or of one of the header with minima. */
INLINE void read_block(const infeng_weight* weight, const void* panel, int64_t g, int64_t superblock,
                       infeng_block* out) {
  out->struct_size = sizeof *out;
  if (weight->foreign)
    weight->foreign->unpack(panel, g, out);
  else
    group_affine(panel, g, superblock, out);
}

/* Reads one k of a float panel, widened. */
INLINE void column_f32(const void* panel, int64_t k, float w[LANES]) {
  memcpy(w, (const float*)panel + k * LANES, LANES * sizeof(float));
}

INLINE void column_bf16(const void* panel, int64_t k, float w[LANES]) {
  const uint16_t* pairs = (const uint16_t*)panel + (k / 2) * (2 * LANES) + k % 2;
  for (int n = 0; n < LANES; n++) w[n] = f32_from_bf16(pairs[2 * n]);
}

#endif
