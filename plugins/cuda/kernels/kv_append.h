// Parameters of KV_APPEND, and what ATTENTION shares with them: formats and addresses of a cache, and spans of rows.
#pragma once

#include <cstdint>

namespace infeng_cuda {

// How a cache stores numbers. In lines, attention finds four positions of a column side by side.
enum Kind : int32_t { kFloat32, kFloat16, kFloat8, kInt8, kInt4, kInt8Lines, kInt4Lines };

// DO(suffix of its kernels, number in abi.h, kind of K, kind of V, whether they are rotated)
#define INFENG_CACHE_FORMATS(DO)          \
  DO(f32, 1, kFloat32, kFloat32, false)   \
  DO(f16, 2, kFloat16, kFloat16, false)   \
  DO(int8, 3, kInt8, kInt8, false)        \
  DO(int8h, 6, kInt8, kInt8, true)        \
  DO(k8v4h, 7, kInt8, kInt4, true)        \
  DO(int4h, 8, kInt4, kInt4, true)        \
  DO(fp8h, 9, kFloat8, kFloat8, true)     \
  DO(int8i, 10, kInt8, kInt8Lines, false) \
  DO(int8hi, 11, kInt8, kInt8Lines, true) \
  DO(k8v4hi, 12, kInt8, kInt4Lines, true) \
  DO(int4hi, 13, kInt4, kInt4Lines, true)

constexpr int kBlockTokens = 16;
constexpr int kMostHead = 512;  // elements of a head

constexpr bool head_fits(int64_t dim, bool rotated) {
  return dim > 0 && dim <= kMostHead && (!rotated || dim % 8 == 0);
}

// One layer's cache, as infeng_kv_cache has it.
struct Cache {
  uint8_t* base = nullptr;
  int64_t block_stride = 0;
  int64_t head_stride = 0;
  int32_t k_offset = 0;
  int32_t v_offset = 0;
  int32_t k_scale_offset = 0;
  int32_t v_scale_offset = 0;
  int32_t blocks = 0;
  int32_t kv_heads = 0;
  int32_t dim = 0;
  int32_t v_dim = 0;
};

// Rows of one sequence at consecutive positions.
struct Span {
  const int32_t* table = nullptr;  // the block of each 16 positions
  int32_t row = 0;                 // the first
  int32_t rows = 0;
  int32_t pos0 = 0;
  int32_t length = 0;      // of the sequence
  int32_t first_row = 0;   // rows of earlier spans of the launch
  int32_t first_item = 0;  // ATTENTION: of earlier spans, groups of rows times splits
  int32_t splits = 0;      // ATTENTION: the most of a group
  int64_t parts = 0;       // ATTENTION: results of earlier spans' splits
};

constexpr int kMostSpans = 72;  // of a launch, whose parameters then take less than 4 KB

struct KvAppend {
  Cache cache;
  const float* k = nullptr;
  const float* v = nullptr;
  int64_t k_row = 0;  // elements from row to row, and from head to head
  int64_t k_head = 0;
  int64_t v_row = 0;
  int64_t v_head = 0;
  Kind k_kind = kFloat32;
  Kind v_kind = kFloat32;
  int32_t rotated = 0;
  int32_t rows = 0;  // of all spans
  int32_t span_count = 0;
  Span spans[kMostSpans];
};

constexpr int kAppendWarps = 4;  // of a block; each writes K or V of a row and head

}  // namespace infeng_cuda
