/* kv_append: writes each row's k and v to its position in the cache. f32 is copied; f16 is rounded; int8 has one scale
 * per token and head, for K and for V, and K is stored as q + 128. SPDX-License-Identifier: Apache-2.0 */
#include "kv.h"

static int64_t kv_append_tiles(const infeng_args* args, int32_t phase) {
  (void)phase;
  return args->rows;
}

static void append_f32(const kv_slab* slab, int token, const float* k, const float* v, int64_t dim, int64_t v_dim) {
  for (int64_t d = 0; d < dim; d++) ((float*)slab->k)[d * LANES + token] = k[d];
  memcpy((float*)slab->v + token * v_dim, v, (size_t)v_dim * sizeof(float));
}

static void append_f16(const kv_slab* slab, int token, const float* k, const float* v, int64_t dim, int64_t v_dim) {
  for (int64_t d = 0; d < dim; d++) ((uint16_t*)slab->k)[d * LANES + token] = f16_from_f32(k[d]);
  for (int64_t d = 0; d < v_dim; d++) ((uint16_t*)slab->v)[token * v_dim + d] = f16_from_f32(v[d]);
}

static void append_int8(const kv_slab* slab, int token, const float* k, const float* v, int64_t dim, int64_t v_dim) {
  int8_t q[MAX_HEAD_DIM];
  int32_t sum;
  const int64_t padded = ceil_div(dim, 4) * 4;
  slab->k_scale[token] = ref_quantize(k, dim, padded, q, &sum);
  for (int64_t d = 0; d < padded; d++) {
    ((uint8_t*)slab->k)[(d / 4) * (4 * LANES) + 4 * token + d % 4] = (uint8_t)(q[d] + 128);
  }
  slab->v_scale[token] = ref_quantize(v, v_dim, v_dim, (int8_t*)slab->v + token * v_dim, &sum);
}

static infeng_status append(const infeng_args* common, int64_t first, int64_t last, infeng_worker* worker,
                            uint32_t format) {
  const infeng_kv_append_args* args = (const infeng_kv_append_args*)common;
  const infeng_kv_cache* cache = args->cache;
  if (!kv_cache_fits(cache, format))
    return fail(worker, INFENG_INVALID_ARGUMENT, "cache has another format or block size");
  for (int64_t row = first; row < last; row++) {
    const infeng_kv_segment* s = find_kv_segment(args->segments, args->segment_stride, args->segment_count, row);
    if (!s) continue;
    const int64_t position = s->pos0 + (row - s->row_begin);
    const int32_t block = s->block_table[position / LANES];
    if (block < 0 || block >= cache->block_count)
      return fail(worker, INFENG_INVALID_ARGUMENT, "block lies outside the cache");
    for (int64_t head = 0; head < cache->kv_heads; head++) {
      const kv_slab slab = slab_of(cache, block, head);
      const float* k = f32_row(&args->k, row) + head * args->k.strides[1];
      const float* v = f32_row(&args->v, row) + head * args->v.strides[1];
      (format == INFENG_KV_F32 ? append_f32
       : format == INFENG_KV_F16
           ? append_f16
           : append_int8)(&slab, (int)(position % LANES), k, v, cache->head_dim, cache->v_head_dim);
    }
  }
  return INFENG_OK;
}

static infeng_status run_f32(const infeng_args* args, int32_t phase, int64_t first, int64_t last,
                             infeng_worker* worker) {
  (void)phase;
  return append(args, first, last, worker, INFENG_KV_F32);
}
static infeng_status run_f16(const infeng_args* args, int32_t phase, int64_t first, int64_t last,
                             infeng_worker* worker) {
  (void)phase;
  return append(args, first, last, worker, INFENG_KV_F16);
}
static infeng_status run_int8(const infeng_args* args, int32_t phase, int64_t first, int64_t last,
                              infeng_worker* worker) {
  (void)phase;
  return append(args, first, last, worker, INFENG_KV_INT8);
}

INLINE int32_t accepts(const infeng_problem* p, uint32_t format) {
  return p->op == INFENG_OP_KV_APPEND && p->kv_format == format && p->head_dim <= MAX_HEAD_DIM &&
         p->v_head_dim <= MAX_HEAD_DIM && fuses_only(p, 0);
}
static int32_t accepts_f32(const infeng_problem* p) { return accepts(p, INFENG_KV_F32); }
static int32_t accepts_f16(const infeng_problem* p) { return accepts(p, INFENG_KV_F16); }
static int32_t accepts_int8(const infeng_problem* p) { return accepts(p, INFENG_KV_INT8); }

KERNEL(reference_kv_append_f32, INFENG_OP_KV_APPEND, "kv_append_f32", 0, NEED(HEAD_SIZES), accepts_f32, kv_append_tiles,
       run_f32);
KERNEL(reference_kv_append_f16, INFENG_OP_KV_APPEND, "kv_append_f16", 0, NEED(HEAD_SIZES), accepts_f16, kv_append_tiles,
       run_f16);
KERNEL(reference_kv_append_int8, INFENG_OP_KV_APPEND, "kv_append_int8", 0, NEED(HEAD_SIZES), accepts_int8,
       kv_append_tiles, run_int8);
