#include "program/kv_cache.h"

#include <infeng/extension/error.h>

#include "vocabulary/cache_formats.h"

namespace infeng {
namespace {

void check_side(const char* what, int64_t value, int64_t most) {
  if (value < 1 || value > most) fail(kBad, "a cache with ", value, " ", what, " is not possible");
}

void check_multiple(const CacheFormat& format, int64_t dim) {
  if (dim % format.multiple == 0) return;
  fail("unsupported", "cache format ", format.name, " takes heads of a multiple of ", format.multiple,
       " elements, not of ", dim);
}

// One head's slab in a block holds K, V and then their scales, each on a 64-byte boundary.
infeng_kv_cache shape_of(uint32_t format, int64_t blocks, int64_t kv_heads, int64_t head_dim, int64_t v_head_dim,
                         int64_t tokens) {
  check_side("kv heads", kv_heads, 1 << 16);
  check_side("elements a head", head_dim, 1 << 14);
  check_side("elements a head of v", v_head_dim, 1 << 14);
  check_side("blocks", blocks, INT32_MAX);
  if (tokens != kBlockTokens) fail(kBad, "a block holds 16 positions, not ", tokens);
  infeng_kv_cache cache{};
  cache.struct_size = sizeof cache;
  cache.format = format;
  cache.block_tokens = static_cast<int32_t>(tokens);
  cache.block_count = static_cast<int32_t>(blocks);
  cache.kv_heads = static_cast<int32_t>(kv_heads);
  cache.head_dim = static_cast<int32_t>(head_dim);
  cache.v_head_dim = static_cast<int32_t>(v_head_dim);
  const CacheFormat& known = cache_format(format);
  check_multiple(known, head_dim);
  check_multiple(known, v_head_dim);
  const int64_t scales = known.has_scales ? round_up(tokens * 4, kLine) : 0;
  cache.v_offset = round_up(known.k_bytes(head_dim), kLine);
  cache.k_scale_offset = cache.v_offset + round_up(known.v_bytes(v_head_dim), kLine);
  cache.v_scale_offset = cache.k_scale_offset + scales;
  cache.head_stride = cache.v_scale_offset + scales;
  cache.block_stride = kv_heads * cache.head_stride;
  return cache;
}

int64_t total_bytes(const infeng_kv_cache& shape, int64_t layers) {
  check_side("layers", layers, 1 << 16);
  int64_t bytes = 0;
  if (__builtin_mul_overflow(shape.block_stride, int64_t{shape.block_count}, &bytes) ||
      __builtin_mul_overflow(bytes, layers, &bytes)) {
    fail("out_of_memory", "a cache of ", shape.block_count, " blocks in ", layers, " layers cannot be addressed");
  }
  return bytes;
}

}  // namespace

KvCache::KvCache(uint32_t format, int64_t layers, int64_t blocks, int64_t kv_heads, int64_t head_dim,
                 int64_t v_head_dim, int64_t block_tokens, const Pages& pages, const DevicePtr& device)
    : shape_(shape_of(format, blocks, kv_heads, head_dim, v_head_dim, block_tokens)),
      layers_(layers),
      memory_(total_bytes(shape_, layers), device, true, pages) {}

int64_t KvCache::bytes_per_block(uint32_t format, int64_t layers, int64_t kv_heads, int64_t head_dim,
                                 int64_t v_head_dim, int64_t block_tokens) {
  return total_bytes(shape_of(format, 1, kv_heads, head_dim, v_head_dim, block_tokens), layers);
}

infeng_kv_cache KvCache::layer(int64_t index) const {
  if (index < 0 || index >= layers_) {
    fail(kBad, "the cache has ", layers_, " layers, there is no layer ", index);
  }
  infeng_kv_cache cache = shape_;
  cache.base = memory_.data() + index * layer_bytes();
  return cache;
}

void KvCache::check_blocks(std::span<const int32_t> blocks) const {
  for (const int32_t index : blocks) {
    if (index < 0 || index >= shape_.block_count) {
      fail(kBad, "the cache has ", shape_.block_count, " blocks, there is no block ", index);
    }
  }
}

void KvCache::read_blocks(std::span<const int32_t> blocks, std::byte* data, int64_t stride) const {
  check_blocks(blocks);
  const int64_t size = shape_.block_stride;
  for (const int32_t index : blocks) {
    for (int64_t l = 0; l < layers_; ++l) memory_.read(data + l * size, block(l, index), size);
    data += stride;
  }
}

void KvCache::write_blocks(std::span<const int32_t> blocks, const std::byte* data, int64_t stride) {
  check_blocks(blocks);
  const int64_t size = shape_.block_stride;
  for (const int32_t index : blocks) {
    for (int64_t l = 0; l < layers_; ++l) memory_.write(block(l, index), data + l * size, size);
    data += stride;
  }
}

void KvCache::copy_blocks(std::span<const int32_t> source, std::span<const int32_t> target) {
  check_blocks(source);
  check_blocks(target);
  if (source.size() != target.size()) {
    fail(kBad, source.size(), " blocks to copy to ", target.size());
  }
  const int64_t size = shape_.block_stride;
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == target[i]) continue;
    for (int64_t l = 0; l < layers_; ++l) memory_.move(block(l, target[i]), block(l, source[i]), size);
  }
}

}  // namespace infeng
