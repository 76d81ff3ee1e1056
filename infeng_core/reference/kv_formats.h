/* The cache formats: how a row's k and v are written to a position, how a query is prepared for a format's K, the
 * scores of one block, and V times a weight. What is not listed here no kernel of this library reads or writes.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef INFENG_REFERENCE_KV_FORMATS_H
#define INFENG_REFERENCE_KV_FORMATS_H

#include "kv.h"

/* DO(ARG, suffix of its functions and kernels, number) for every format. */
#define CACHE_FORMATS(DO, ARG) \
  DO(ARG, f32, INFENG_KV_F32)  \
  DO(ARG, f16, INFENG_KV_F16)  \
  DO(ARG, int8, INFENG_KV_INT8)

/* A query head; a format may need it in another form, which its `prepare` makes. */
typedef struct query_head {
  const float* q;
  int64_t dim;
  float scale;
  int8_t qq[MAX_HEAD_DIM]; /* with one scale, qs */
  float qs;
} query_head;

/* -------------------------------------------------------------------------------------------- f32: as it is --- */

INLINE void append_f32(const kv_slab* slab, int token, const float* k, const float* v, int64_t dim, int64_t v_dim) {
  for (int64_t d = 0; d < dim; d++) ((float*)slab->k)[d * LANES + token] = k[d];
  memcpy((float*)slab->v + token * v_dim, v, (size_t)v_dim * sizeof(float));
}

INLINE void prepare_f32(query_head* x) { (void)x; }

/* Scores of one block's 16 tokens; those that are not visible are computed too and never read. */
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

INLINE void append_int8(const kv_slab* slab, int token, const float* k, const float* v, int64_t dim, int64_t v_dim) {
  int8_t q[MAX_HEAD_DIM];
  int32_t sum;
  const int64_t padded = ceil_div(dim, 4) * 4;
  slab->k_scale[token] = ref_quantize(k, dim, padded, q, &sum);
  for (int64_t d = 0; d < padded; d++) {
    ((uint8_t*)slab->k)[(d / 4) * (4 * LANES) + 4 * token + d % 4] = (uint8_t)(q[d] + 128);
  }
  slab->v_scale[token] = ref_quantize(v, v_dim, v_dim, (int8_t*)slab->v + token * v_dim, &sum);
}

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

#endif
