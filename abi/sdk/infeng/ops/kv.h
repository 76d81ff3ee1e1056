// Addresses in the paged cache. A slab is one kv head of one block of 16 positions:
//   f32, f16   K [head_dim][16 tokens], V [16 tokens][head_dim]
//   int8       K [head_dim / 4][16 tokens][4] u8 = q + 128, V [16 tokens][head_dim] int8, a scale per token for each
//   int8h      as int8; the formats below have the same scales
//   k8v4h      K as int8, V as int4h
//   int4h      K [head_dim / 8][16 tokens][4] u8 and V [16 tokens][head_dim / 16][8] u8, nibbles of q + 8
//   fp8h       K [head_dim][16 tokens] and V [16 tokens][head_dim], e4m3
//   int8i      K as int8, V [4 groups of tokens][head_dim / 16][16 columns][4 tokens] int8; int8hi as int8i
//   k8v4hi     K as int8, V [4 groups of tokens][head_dim / 16][8 columns][4 tokens] u8, nibbles; int4hi: K as int4h
// Formats with an h in their names store K and V rotated (ops/hadamard.h).
// SPDX-License-Identifier: Apache-2.0
#ifndef INFENG_OPS_KV_H
#define INFENG_OPS_KV_H

#include <infeng/ops/hadamard.h>

namespace infeng {
namespace {

constexpr int kMaxHeadDim = 512;  // bounds arrays on the stack

struct Slab {
  char* base;
  const infeng_kv_cache* cache;

  template <class T>
  INFENG_INLINE T* k() const {
    return (T*)(base + cache->k_offset);
  }
  // The row of a token; a T holds `columns` values.
  template <class T>
  INFENG_INLINE T* v(int token, int columns = 1) const {
    return (T*)(base + cache->v_offset) + token * ceil_div(cache->head_dim, columns);
  }
  INFENG_INLINE float* k_scale() const { return (float*)(base + cache->k_scale_offset); }
  INFENG_INLINE float* v_scale() const { return (float*)(base + cache->v_scale_offset); }
};

INFENG_INLINE Slab slab_at(const infeng_kv_cache& cache, int64_t block, int64_t head) {
  return {(char*)cache.base + block * cache.block_stride + head * cache.head_stride, &cache};
}

// The head size is a multiple of this: int8 K needs whole groups of four inputs, rotations need whole blocks.
constexpr int head_dim_multiple(uint32_t format) {
  if (format == INFENG_KV_INT8 || format == INFENG_KV_INT8_I) return 4;
  return format >= INFENG_KV_INT8_H ? kLeastHadamardBlock : 1;
}

// The bounds of all kernels over these layouts.
INFENG_INLINE bool head_dim_fits(uint32_t format, int64_t head_dim) {
  return head_dim > 0 && head_dim <= kMaxHeadDim && head_dim % head_dim_multiple(format) == 0;
}
INFENG_INLINE bool cache_fits(const infeng_kv_cache& cache, uint32_t format) {
  return cache.format == format && cache.block_tokens == kLanes && head_dim_fits(format, cache.head_dim);
}

}  // namespace
}  // namespace infeng
#endif  // INFENG_OPS_KV_H
