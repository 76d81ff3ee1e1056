/* The cache formats of this library. Each has functions that write a row's k and v to a position, prepare a query,
 * score one block, add V of one token times a weight or read an integer of V, and finish a head's result.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef INFENG_REFERENCE_KV_FORMATS_H
#define INFENG_REFERENCE_KV_FORMATS_H

#include "kv.h"
#include "kv_numbers.h"

/* DO(ARG, suffix of its functions and kernels, number) for every format: of those whose V is added token by token, of
 * those whose V is added in integers, and of both. */
#define TOKEN_FORMATS(DO, ARG)     \
  DO(ARG, f32, INFENG_KV_F32)      \
  DO(ARG, f16, INFENG_KV_F16)      \
  DO(ARG, int8, INFENG_KV_INT8)    \
  DO(ARG, int8h, INFENG_KV_INT8_H) \
  DO(ARG, k8v4h, INFENG_KV_K8V4_H) \
  DO(ARG, int4h, INFENG_KV_INT4_H) \
  DO(ARG, fp8h, INFENG_KV_FP8_H)
#define SHARE_FORMATS(DO, ARG)       \
  DO(ARG, int8i, INFENG_KV_INT8_I)   \
  DO(ARG, int8hi, INFENG_KV_INT8_HI) \
  DO(ARG, k8v4hi, INFENG_KV_K8V4_HI) \
  DO(ARG, int4hi, INFENG_KV_INT4_HI)
#define CACHE_FORMATS(DO, ARG) TOKEN_FORMATS(DO, ARG) SHARE_FORMATS(DO, ARG)

/* A query head, with other forms of it that the `prepare` of a format computes. */
typedef struct query_head {
  const float* q;
  int64_t dim;
  float scale;
  int8_t qq[MAX_HEAD_DIM]; /* q as int8 under the scale qs */
  float qs;
  float rotated[MAX_HEAD_DIM];
} query_head;

/* -------------------------------------------------------------------------------------------- f32: as it is --- */

INLINE void finish_f32(float* out, int64_t dim) { (void)out, (void)dim; }

INLINE void append_f32(const kv_slab* slab, int token, const float* k, const float* v, int64_t dim, int64_t v_dim) {
  for (int64_t d = 0; d < dim; d++) ((float*)slab->k)[d * LANES + token] = k[d];
  memcpy((float*)slab->v + token * v_dim, v, (size_t)v_dim * sizeof(float));
}

INLINE void prepare_f32(query_head* x) { (void)x; }

/* Scores of one block's 16 tokens; scores of invisible tokens are computed too and never read. */
INLINE void scores_f32(const query_head* x, const kv_slab* slab, float s[LANES]) {
  float a[LANES] = {0};
  const float* k = slab->k;
  for (int64_t d = 0; d < x->dim; d++) {
    for (int t = 0; t < LANES; t++) a[t] = fmaf(x->q[d], k[d * LANES + t], a[t]);
  }
  for (int t = 0; t < LANES; t++) s[t] = a[t] * x->scale;
}

/* o[d] = fma(p, V[token][d], o[d]) */
INLINE void values_f32(const kv_slab* slab, int64_t token, float p, float* o, int64_t dim) {
  const float* v = (const float*)slab->v + token * dim;
  for (int64_t d = 0; d < dim; d++) o[d] = fmaf(p, v[d], o[d]);
}

/* ----------------------------------------------------------------------------------------------- f16: rounded --- */

INLINE void finish_f16(float* out, int64_t dim) { (void)out, (void)dim; }

INLINE void append_f16(const kv_slab* slab, int token, const float* k, const float* v, int64_t dim, int64_t v_dim) {
  for (int64_t d = 0; d < dim; d++) ((uint16_t*)slab->k)[d * LANES + token] = f16_from_f32(k[d]);
  for (int64_t d = 0; d < v_dim; d++) ((uint16_t*)slab->v)[token * v_dim + d] = f16_from_f32(v[d]);
}

INLINE void prepare_f16(query_head* x) { (void)x; }

INLINE void scores_f16(const query_head* x, const kv_slab* slab, float s[LANES]) {
  float a[LANES] = {0};
  const uint16_t* k = slab->k;
  for (int64_t d = 0; d < x->dim; d++) {
    for (int t = 0; t < LANES; t++) a[t] = fmaf(x->q[d], f32_from_f16(k[d * LANES + t]), a[t]);
  }
  for (int t = 0; t < LANES; t++) s[t] = a[t] * x->scale;
}

INLINE void values_f16(const kv_slab* slab, int64_t token, float p, float* o, int64_t dim) {
  const uint16_t* v = (const uint16_t*)slab->v + token * dim;
  for (int64_t d = 0; d < dim; d++) o[d] = fmaf(p, f32_from_f16(v[d]), o[d]);
}

/* ------------------------------------------- int8: one scale per token and head, for K and for V; K is q + 128 --- */

INLINE void write_int8_k(const kv_slab* slab, int token, const float* k, int64_t dim) {
  int8_t q[MAX_HEAD_DIM];
  int32_t sum;
  const int64_t padded = ceil_div(dim, 4) * 4;
  slab->k_scale[token] = ref_quantize(k, dim, padded, q, &sum);
  for (int64_t d = 0; d < padded; d++) {
    ((uint8_t*)slab->k)[(d / 4) * (4 * LANES) + 4 * token + d % 4] = (uint8_t)(q[d] + 128);
  }
}

INLINE void write_int8_v(const kv_slab* slab, int token, const float* v, int64_t dim) {
  int32_t sum;
  slab->v_scale[token] = ref_quantize(v, dim, dim, (int8_t*)slab->v + token * dim, &sum);
}

INLINE void append_int8(const kv_slab* slab, int token, const float* k, const float* v, int64_t dim, int64_t v_dim) {
  write_int8_k(slab, token, k, dim);
  write_int8_v(slab, token, v, v_dim);
}

INLINE void finish_int8(float* out, int64_t dim) { (void)out, (void)dim; }

INLINE void prepare_int8(query_head* x) {
  int32_t sum;
  x->qs = ref_quantize(x->q, x->dim, x->dim, x->qq, &sum);
}

INLINE void scores_int8(const query_head* x, const kv_slab* slab, float s[LANES]) {
  int32_t a[LANES] = {0};
  const uint8_t* k = slab->k;
  for (int64_t d = 0; d < x->dim; d++) {
    const uint8_t* line = k + (d / 4) * (4 * LANES) + d % 4;
    for (int t = 0; t < LANES; t++) a[t] += (int32_t)x->qq[d] * ((int32_t)line[4 * t] - 128);
  }
  for (int t = 0; t < LANES; t++) s[t] = (float)a[t] * ((x->qs * slab->k_scale[t]) * x->scale);
}

INLINE void values_int8(const kv_slab* slab, int64_t token, float p, float* o, int64_t dim) {
  const int8_t* v = (const int8_t*)slab->v + token * dim;
  const float weight = p * slab->v_scale[token];
  for (int64_t d = 0; d < dim; d++) o[d] = fmaf(weight, (float)v[d], o[d]);
}

/* ------------------------------------------- rotated: K and V times a Hadamard matrix, so q and the result too --- */

#define ROTATED(name, write_k, write_v)                                                                  \
  INLINE void append_##name(const kv_slab* slab, int token, const float* k, const float* v, int64_t dim, \
                            int64_t v_dim) {                                                             \
    float x[MAX_HEAD_DIM];                                                                               \
    rotate(k, dim, x);                                                                                   \
    write_k(slab, token, x, dim);                                                                        \
    rotate(v, v_dim, x);                                                                                 \
    write_v(slab, token, x, v_dim);                                                                      \
  }                                                                                                      \
  INLINE void finish_##name(float* out, int64_t dim) { hadamard(out, dim); }

INLINE void prepare_rotated(query_head* x) {
  for (int64_t d = 0; d < x->dim; d++) x->rotated[d] = x->q[d];
  hadamard(x->rotated, x->dim);
  x->q = x->rotated;
}

/* int8h: as int8 */

ROTATED(int8h, write_int8_k, write_int8_v)

INLINE void prepare_int8h(query_head* x) {
  prepare_rotated(x);
  prepare_int8(x);
}

INLINE void scores_int8h(const query_head* x, const kv_slab* slab, float s[LANES]) { scores_int8(x, slab, s); }

INLINE void values_int8h(const kv_slab* slab, int64_t token, float p, float* o, int64_t dim) {
  values_int8(slab, token, p, o, dim);
}

/* int4h: nibbles q + 8, one scale per token and head */

INLINE void write_int4_k(const kv_slab* slab, int token, const float* k, int64_t dim) {
  int8_t q[MAX_HEAD_DIM];
  slab->k_scale[token] = ref_quantize4(k, dim, dim, q);
  for (int64_t d = 0; d < dim; d++) {
    const nibble at = k_nibble(d, dim);
    set_nibble((uint8_t*)slab->k + at.line * (4 * LANES) + 4 * token + at.byte, at.high, q[d]);
  }
}

INLINE void write_int4_v(const kv_slab* slab, int token, const float* v, int64_t dim) {
  int8_t q[MAX_HEAD_DIM];
  const int64_t padded = ceil_div(dim, 16) * 16;
  uint8_t* row = (uint8_t*)slab->v + token * (padded / 2);
  slab->v_scale[token] = ref_quantize4(v, dim, padded, q);
  for (int64_t d = 0; d < padded; d++) set_nibble(row + d / 16 * 8 + d % 8, d % 16 / 8, q[d]);
}

ROTATED(int4h, write_int4_k, write_int4_v)

INLINE void prepare_int4h(query_head* x) { prepare_int8h(x); }

INLINE void scores_int4h(const query_head* x, const kv_slab* slab, float s[LANES]) {
  int32_t a[LANES] = {0};
  for (int64_t d = 0; d < x->dim; d++) {
    const nibble at = k_nibble(d, x->dim);
    const uint8_t* line = (const uint8_t*)slab->k + at.line * (4 * LANES) + at.byte;
    for (int t = 0; t < LANES; t++) a[t] += (int32_t)x->qq[d] * get_nibble(line + 4 * t, at.high);
  }
  for (int t = 0; t < LANES; t++) s[t] = (float)a[t] * ((x->qs * slab->k_scale[t]) * x->scale);
}

INLINE void values_int4h(const kv_slab* slab, int64_t token, float p, float* o, int64_t dim) {
  const uint8_t* row = (const uint8_t*)slab->v + token * (ceil_div(dim, 16) * 8);
  const float weight = p * slab->v_scale[token];
  for (int64_t d = 0; d < dim; d++) {
    o[d] = fmaf(weight, (float)get_nibble(row + d / 16 * 8 + d % 8, d % 16 / 8), o[d]);
  }
}

/* k8v4h: K of int8h, V of int4h */

ROTATED(k8v4h, write_int8_k, write_int4_v)

INLINE void prepare_k8v4h(query_head* x) { prepare_int8h(x); }

INLINE void scores_k8v4h(const query_head* x, const kv_slab* slab, float s[LANES]) { scores_int8(x, slab, s); }

INLINE void values_k8v4h(const kv_slab* slab, int64_t token, float p, float* o, int64_t dim) {
  values_int4h(slab, token, p, o, dim);
}

/* fp8h: e4m3 codes, one scale per token and head; queries stay f32 */

INLINE void write_fp8_k(const kv_slab* slab, int token, const float* k, int64_t dim) {
  uint8_t code[MAX_HEAD_DIM];
  slab->k_scale[token] = ref_quantize_e4m3(k, dim, code);
  for (int64_t d = 0; d < dim; d++) ((uint8_t*)slab->k)[d * LANES + token] = code[d];
}

INLINE void write_fp8_v(const kv_slab* slab, int token, const float* v, int64_t dim) {
  slab->v_scale[token] = ref_quantize_e4m3(v, dim, (uint8_t*)slab->v + token * dim);
}

ROTATED(fp8h, write_fp8_k, write_fp8_v)

INLINE void prepare_fp8h(query_head* x) { prepare_rotated(x); }

INLINE void scores_fp8h(const query_head* x, const kv_slab* slab, float s[LANES]) {
  float a[LANES] = {0};
  const uint8_t* k = slab->k;
  for (int64_t d = 0; d < x->dim; d++) {
    for (int t = 0; t < LANES; t++) a[t] = fmaf(x->q[d], f32_from_e4m3(k[d * LANES + t]), a[t]);
  }
  for (int t = 0; t < LANES; t++) s[t] = a[t] * (slab->k_scale[t] * x->scale);
}

INLINE void values_fp8h(const kv_slab* slab, int64_t token, float p, float* o, int64_t dim) {
  const uint8_t* v = (const uint8_t*)slab->v + token * dim;
  const float weight = p * slab->v_scale[token];
  for (int64_t d = 0; d < dim; d++) o[d] = fmaf(weight, f32_from_e4m3(v[d]), o[d]);
}

/* ----------------------------------------------- V in lines of four tokens, which attention multiplies by shares ---
 */

/* The largest share of a token. Scales of 4 bits have signs, so their shares have too and keep 7 bits. */
enum { most_share_int8i = 255, most_share_int8hi = 255, most_share_k8v4hi = 127, most_share_int4hi = 127 };

/* The byte of a token's column 0; column d is 4 d bytes further. */
INLINE int8_t* int8_line(const kv_slab* slab, int64_t token, int64_t dim) {
  return (int8_t*)slab->v + token / 4 * 4 * (ceil_div(dim, LANES) * LANES) + token % 4;
}

INLINE void write_int8_lines(const kv_slab* slab, int token, const float* v, int64_t dim) {
  int8_t q[MAX_HEAD_DIM];
  int32_t sum;
  const int64_t padded = ceil_div(dim, LANES) * LANES;
  int8_t* line = int8_line(slab, token, dim);
  slab->v_scale[token] = ref_quantize(v, dim, padded, q, &sum);
  for (int64_t d = 0; d < padded; d++) line[4 * d] = q[d];
}

/* The byte of a token's column d, whose high nibble is column d + 8, for d mod 16 < 8. */
INLINE uint8_t* int4_line(const kv_slab* slab, int64_t token, int64_t d, int64_t dim) {
  const int64_t lines = token / 4 * ceil_div(dim, LANES) + d / LANES; /* before this one, of 32 bytes */
  return (uint8_t*)slab->v + lines * (2 * LANES) + d % 8 * 4 + token % 4;
}

INLINE void write_int4_lines(const kv_slab* slab, int token, const float* v, int64_t dim) {
  int8_t q[MAX_HEAD_DIM];
  const int64_t padded = ceil_div(dim, LANES) * LANES;
  slab->v_scale[token] = ref_quantize4(v, dim, padded, q);
  for (int64_t d = 0; d < padded; d++) set_nibble(int4_line(slab, token, d, dim), d % LANES / 8, q[d]);
}

/* int8i: K as int8 */

INLINE void append_int8i(const kv_slab* slab, int token, const float* k, const float* v, int64_t dim, int64_t v_dim) {
  write_int8_k(slab, token, k, dim);
  write_int8_lines(slab, token, v, v_dim);
}

INLINE void finish_int8i(float* out, int64_t dim) { (void)out, (void)dim; }

INLINE void prepare_int8i(query_head* x) { prepare_int8(x); }

INLINE void scores_int8i(const query_head* x, const kv_slab* slab, float s[LANES]) { scores_int8(x, slab, s); }

INLINE int32_t integer_int8i(const kv_slab* slab, int64_t token, int64_t d, int64_t dim) {
  return int8_line(slab, token, dim)[4 * d];
}

/* int8hi: K as int8h */

ROTATED(int8hi, write_int8_k, write_int8_lines)

INLINE void prepare_int8hi(query_head* x) { prepare_int8h(x); }

INLINE void scores_int8hi(const query_head* x, const kv_slab* slab, float s[LANES]) { scores_int8(x, slab, s); }

INLINE int32_t integer_int8hi(const kv_slab* slab, int64_t token, int64_t d, int64_t dim) {
  return integer_int8i(slab, token, d, dim);
}

/* k8v4hi: K as int8h */

ROTATED(k8v4hi, write_int8_k, write_int4_lines)

INLINE void prepare_k8v4hi(query_head* x) { prepare_int8h(x); }

INLINE void scores_k8v4hi(const query_head* x, const kv_slab* slab, float s[LANES]) { scores_int8(x, slab, s); }

INLINE int32_t integer_k8v4hi(const kv_slab* slab, int64_t token, int64_t d, int64_t dim) {
  return get_nibble(int4_line(slab, token, d, dim), d % LANES / 8);
}

/* int4hi: K as int4h */

ROTATED(int4hi, write_int4_k, write_int4_lines)

INLINE void prepare_int4hi(query_head* x) { prepare_int8h(x); }

INLINE void scores_int4hi(const query_head* x, const kv_slab* slab, float s[LANES]) { scores_int4h(x, slab, s); }

INLINE int32_t integer_int4hi(const kv_slab* slab, int64_t token, int64_t d, int64_t dim) {
  return integer_k8v4hi(slab, token, d, dim);
}

#endif
