/* The 4-bit and e4m3 numbers of the KV cache, as docs/numerics.md defines them.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef INFENG_REFERENCE_KV_NUMBERS_H
#define INFENG_REFERENCE_KV_NUMBERS_H

#include "common.h"

INLINE float clamped(float x, float low, float high) {
  x = x < high ? x : high;
  return x > low ? x : low;
}

/* ---------------------------------------------------------------------------------------------------- 4 bits --- */

/* Writes q[0 .. count) = x in [-8, 7] under one scale, and q[count .. padded) = 0. The value of largest magnitude (the
 * negative one of two equals) becomes -8, so the scale has the opposite sign. Returns the scale. */
INLINE float ref_quantize4(const float* x, int64_t count, int64_t padded, int8_t* q) {
  const float amax = ref_amax(x, count);
  for (int64_t i = 0; i < padded; i++) q[i] = 0;
  if (amax < 0x1p-100f) return 0.0f;
  float extreme = amax;
  for (int64_t i = 0; i < count; i++) {
    if (x[i] == -amax) extreme = x[i];
  }
  const float inverse = -8.0f / extreme;
  for (int64_t i = 0; i < count; i++) q[i] = (int8_t)clamped(rintf(x[i] * inverse), -8.0f, 7.0f);
  return extreme / -8.0f;
}

/* The place of element d of a position's K: each 64 elements have 8 lines, and the rest has a line for each 8. */
typedef struct nibble {
  int64_t line;
  int64_t byte; /* of the token's four */
  int64_t high;
} nibble;

INLINE nibble k_nibble(int64_t d, int64_t dim) {
  const int64_t lines = d < dim / 64 * 64 ? 8 : 1;
  const int64_t within = d % (8 * lines);
  return (nibble){(d - within) / 8 + within / 4 % lines, d % 4, within / (4 * lines)};
}

INLINE void set_nibble(uint8_t* byte, int64_t high, int8_t q) {
  const uint8_t u = (uint8_t)(q + 8);
  *byte = high ? (uint8_t)((*byte & 15) | u << 4) : (uint8_t)((*byte & 0xf0) | u);
}

INLINE int32_t get_nibble(const uint8_t* byte, int64_t high) { return (high ? *byte >> 4 : *byte & 15) - 8; }

/* ------------------------------------------------------------------------------------------------------ e4m3 --- */

/* An e4m3 number over 256: its code is the upper half of a binary16, whose exponent bias is larger by 8. */
INLINE float f32_from_e4m3(uint8_t code) { return f32_from_f16((uint16_t)((code & 0x80u) << 8 | (code & 0x7fu) << 7)); }

/* The nearest code, ties to an even code; |value| <= 1.75. */
INLINE uint8_t e4m3_from_f32(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  const uint32_t sign = bits >> 24 & 0x80u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude < 0x38800000u) { /* below 2^-14: a multiple of 2^-17 */
    return (uint8_t)(sign | (uint32_t)rintf(f32_from_bits(magnitude) * 0x1p17f));
  }
  return (uint8_t)(sign | (((magnitude + 0x7ffffu + ((magnitude >> 20) & 1u)) >> 20) - (112u << 3)));
}

/* Writes code[0 .. count) = x under one scale. Returns the scale. */
INLINE float ref_quantize_e4m3(const float* x, int64_t count, uint8_t* code) {
  const float amax = ref_amax(x, count);
  for (int64_t i = 0; i < count; i++) code[i] = 0;
  if (amax < 0x1p-100f) return 0.0f;
  const float inverse = 1.75f / amax;
  for (int64_t i = 0; i < count; i++) code[i] = e4m3_from_f32(clamped(x[i] * inverse, -1.75f, 1.75f));
  return amax / 1.75f;
}

#endif
