// The formats of the KV cache: their names and the geometry of their blocks.
#pragma once

#include <infeng/abi.h>

#include <cstdint>
#include <span>

namespace infeng {

inline constexpr int32_t kBlockTokens = 16;

// A cache format: its name and the geometry of one head's slab in a block. A reserved format has no size functions.
struct CacheFormat {
  uint32_t number;
  const char* name;
  // Bytes of K and of V in a block of 16 positions.
  int64_t (*k_bytes)(int64_t head_dim);
  int64_t (*v_bytes)(int64_t v_head_dim);
  bool has_scales;       // one f32 for each position of K, then one for each position of V
  int16_t multiple = 1;  // head sizes are multiples of it
};

// Sorted by number.
std::span<const CacheFormat> cache_formats();

// Throws Error "unsupported" for a reserved format and for an unknown number.
const CacheFormat& cache_format(uint32_t number);

}  // namespace infeng
