/* Addresses in the paged cache. SPDX-License-Identifier: Apache-2.0 */
#ifndef INFENG_REFERENCE_KV_H
#define INFENG_REFERENCE_KV_H

#include "hadamard.h"

#define MAX_HEAD_DIM 512 /* bounds arrays on the stack */

/* The parts of one head's slab in one block; a format without scales does not use the scale pointers. */
typedef struct kv_slab {
  void* k; /* infeng_kv_cache draws the layout of each format */
  void* v;
  float* k_scale; /* [16] */
  float* v_scale; /* [16] */
} kv_slab;

INLINE kv_slab slab_of(const infeng_kv_cache* cache, int64_t block, int64_t head) {
  char* base = (char*)cache->base + block * cache->block_stride + head * cache->head_stride;
  return (kv_slab){base + cache->k_offset, base + cache->v_offset, (float*)(base + cache->k_scale_offset),
                   (float*)(base + cache->v_scale_offset)};
}

INLINE int is_rotated(uint32_t format) { return format >= INFENG_KV_INT8_H && format != INFENG_KV_INT8_I; }

INLINE int head_size_fits(uint32_t format, int64_t dim) {
  return dim <= MAX_HEAD_DIM && (!is_rotated(format) || dim % LEAST_HADAMARD_BLOCK == 0);
}

INLINE int kv_cache_fits(const infeng_kv_cache* cache, uint32_t format) {
  return cache->format == format && cache->block_tokens == LANES && cache->head_dim > 0 &&
         head_size_fits(format, cache->head_dim) && cache->v_head_dim > 0 && head_size_fits(format, cache->v_head_dim);
}

#endif
