// The KV blocks of all layers in one arena, whose pages are touched on first use.
#pragma once

#include <infeng/abi.h>

#include <cstddef>
#include <span>

#include "vocabulary/cache_formats.h"
#include "weights/arena.h"

namespace infeng {

class KvCache {
 public:
  // Heads of k and of v may differ in size.
  KvCache(uint32_t format, int64_t layers, int64_t blocks, int64_t kv_heads, int64_t head_dim, int64_t v_head_dim,
          int64_t block_tokens, const Pages& pages = {}, const DevicePtr& device = nullptr);

  // Bytes of one block in all layers.
  static int64_t bytes_per_block(uint32_t format, int64_t layers, int64_t kv_heads, int64_t head_dim,
                                 int64_t v_head_dim, int64_t block_tokens);

  // Returns the kernels' descriptor of one layer. Throws Error "invalid_argument" for a layer that does not exist.
  infeng_kv_cache layer(int64_t index) const;

  // Copy whole blocks between the cache and `data`: blocks[i] is at `data` + i * `stride`, layer after layer. Throw
  // Error "invalid_argument" for a block that does not exist, before any byte is copied.
  void read_blocks(std::span<const int32_t> blocks, std::byte* data, int64_t stride) const;
  void write_blocks(std::span<const int32_t> blocks, const std::byte* data, int64_t stride);
  // Copies block source[i] to block target[i], i ascending; both spans have the same length.
  void copy_blocks(std::span<const int32_t> source, std::span<const int32_t> target);

  int64_t layers() const { return layers_; }
  int64_t layer_bytes() const { return shape_.block_stride * shape_.block_count; }
  int64_t block_bytes() const { return layers_ * shape_.block_stride; }
  int64_t nbytes() const { return layers_ * layer_bytes(); }
  const infeng_kv_cache& shape() const { return shape_; }
  int place_error() const { return memory_.place_error(); }
  bool is_on_device() const { return memory_.is_on_device(); }

 private:
  void check_blocks(std::span<const int32_t> blocks) const;
  std::byte* block(int64_t layer, int32_t index) const {
    return memory_.data() + layer * layer_bytes() + index * shape_.block_stride;
  }

  infeng_kv_cache shape_;  // of layer 0, without a base
  int64_t layers_;
  Storage memory_;
};

}  // namespace infeng
