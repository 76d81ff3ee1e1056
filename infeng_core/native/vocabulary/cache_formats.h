// The formats of the key/value cache: the word of each and the geometry of its blocks.
#pragma once

#include <infeng/abi.h>

#include <cstdint>
#include <span>

namespace infeng {

inline constexpr int32_t kBlockTokens = 16;

// A cache format: its word and the geometry of one head's slab in one block. One without sizes is reserved.
struct CacheFormat {
  uint32_t number;
  const char* name;
  // Bytes of K and of V of a block's 16 positions, by the size of a head.
  int64_t (*k_bytes)(int64_t head_dim);
  int64_t (*v_bytes)(int64_t v_head_dim);
  bool has_scales;       // one f32 for each position of K, then one for each of V
  int16_t multiple = 1;  // of which the sizes of heads are

  bool is_reserved() const { return k_bytes == nullptr; }
};

// By number.
std::span<const CacheFormat> cache_formats();

// Throws Error "unsupported" for a format that is reserved, and for a number that is none.
const CacheFormat& cache_format(uint32_t number);

}  // namespace infeng
