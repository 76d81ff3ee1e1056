// Parameters of ATTENTION. A block takes a split of 256 positions, a few rows of a span, and the query heads that share
// a kv head; where a span has several splits, their results are combined afterwards.
#pragma once

#include "kv_append.h"

namespace infeng_cuda {

constexpr int kSplit = 256;
constexpr int kScoreStride = kSplit + 8;   // floats from query to query
constexpr int kShareStride = kSplit + 16;  // bytes
constexpr int kMostQueries = 32;           // rows times heads of a block
constexpr int kMostAttentionThreads = 512;

// A thread adds V for so many queries, and so many times 16 queries are multiplied with K; for few and for many rows.
template <bool many>
constexpr int kThreadQueries = many ? 16 : 4;
template <bool many>
constexpr int kQueryTiles = many ? 2 : 1;

struct Attention {
  Cache cache;
  const float* q = nullptr;
  float* out = nullptr;
  const float* sinks = nullptr;   // or null
  const float* slopes = nullptr;  // or null
  float* parts = nullptr;         // o, m and l of each row, head and split
  int64_t q_row = 0;
  int64_t q_head = 0;
  int64_t out_row = 0;
  int32_t part_stride = 0;
  int32_t heads = 0;
  int32_t shared_heads = 0;  // that share a kv head
  int32_t block_heads = 0;   // of those, the most of a block
  int32_t group_rows = 0;    // the most rows of a block
  int32_t window = 0;
  int32_t is_full = 0;
  int32_t rotated = 0;
  float scale = 0;
  float softcap = 0;
  // Places in shared memory, in words. Queries lie first, as floats; results of the split take their place.
  int32_t query_stride = 0;
  int32_t scores = 0;
  int32_t rounded = 0;  // queries as int8
  int32_t rounded_stride = 0;
  int32_t values = 0;         // V, two chunks in turn, or shares
  int32_t chunk_tokens = 0;   // a power of two, at least 16
  int32_t block_k_bytes = 0;  // of 16 tokens
  int32_t block_v_bytes = 0;
  int32_t span_count = 0;
  Span spans[kMostSpans];
};

}  // namespace infeng_cuda
