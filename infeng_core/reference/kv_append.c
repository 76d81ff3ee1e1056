/* kv_append: writes each row's k and v to its position in the cache. SPDX-License-Identifier: Apache-2.0 */
#include "kv_formats.h"

static int64_t kv_append_tiles(const infeng_args* args, int32_t phase) {
  (void)phase;
  return args->rows;
}

typedef void (*append_fn)(const kv_slab* slab, int token, const float* k, const float* v, int64_t dim, int64_t v_dim);

INLINE infeng_status append(const infeng_args* common, int64_t first, int64_t last, infeng_worker* worker,
                            uint32_t format, append_fn write) {
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
      write(&slab, (int)(position % LANES), k, v, cache->head_dim, cache->v_head_dim);
    }
  }
  return INFENG_OK;
}

INLINE int32_t accepts(const infeng_problem* p, uint32_t format) {
  return p->op == INFENG_OP_KV_APPEND && p->kv_format == format && head_size_fits(format, p->head_dim) &&
         head_size_fits(format, p->v_head_dim) && fuses_only(p, 0);
}
#define KV_APPEND(arg, name, number)                                                                               \
  static infeng_status run_##name(const infeng_args* args, int32_t phase, int64_t first, int64_t last,             \
                                  infeng_worker* worker) {                                                         \
    (void)phase;                                                                                                   \
    return append(args, first, last, worker, number, append_##name);                                               \
  }                                                                                                                \
  static int32_t accepts_##name(const infeng_problem* p) { return accepts(p, number); }                            \
  KERNEL(reference_kv_append_##name, INFENG_OP_KV_APPEND, "kv_append_" #name, 0, NEED(HEAD_SIZES), accepts_##name, \
         kv_append_tiles, run_##name);
CACHE_FORMATS(KV_APPEND, )
