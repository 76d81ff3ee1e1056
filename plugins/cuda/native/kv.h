// From structs of the cache to parameters of launches.
#pragma once

#include <infeng/abi.h>

#include <algorithm>

#include "../kernels/kv_append.h"

namespace infeng_cuda {

inline constexpr const char* kOtherCache = "cache has another format or block size";

inline bool cache_fits(const infeng_kv_cache& cache, uint32_t format, bool rotated) {
  return cache.format == format && cache.block_tokens == kBlockTokens && head_fits(cache.head_dim, rotated) &&
         head_fits(cache.v_head_dim, rotated);
}

inline Cache flatten_cache(const infeng_kv_cache& cache) {
  return {static_cast<uint8_t*>(cache.base),
          cache.block_stride,
          cache.head_stride,
          static_cast<int32_t>(cache.k_offset),
          static_cast<int32_t>(cache.v_offset),
          static_cast<int32_t>(cache.k_scale_offset),
          static_cast<int32_t>(cache.v_scale_offset),
          cache.block_count,
          cache.kv_heads,
          cache.head_dim,
          cache.v_head_dim};
}

// Segment i of KV_APPEND or ATTENTION, without rows that the call lacks.
template <class Args>
Span span_of(const Args& args, int32_t i) {
  const auto* at = reinterpret_cast<const char*>(args.segments) + size_t{args.segment_stride} * static_cast<size_t>(i);
  const auto& s = *reinterpret_cast<const infeng_kv_segment*>(at);
  Span span;
  span.table = s.block_table;
  span.row = s.row_begin;
  span.rows = static_cast<int32_t>(std::min<int64_t>(s.row_end, args.common.rows)) - s.row_begin;
  span.pos0 = s.pos0;
  span.length = s.length;
  return span;
}

}  // namespace infeng_cuda
