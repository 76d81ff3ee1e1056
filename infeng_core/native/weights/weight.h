// A packed weight and the arithmetic of its panels (docs/format.md).
#pragma once

#include <infeng/abi.h>

#include <memory>

namespace infeng {

inline constexpr int64_t kPanel = 16;  // outputs of one panel
inline constexpr int64_t kGroup = 64;  // inputs of one activation group; K is padded to it

// Bytes of one panel of `k` inputs. Throws Error "unsupported" for the reserved formats.
int64_t panel_bytes_of(uint32_t format, int64_t k);

// Bytes of `rank` stacked rows of adapters: panels of 16, of which a last one of 8 rows or fewer is folded, see
// infeng_lora_segment.
int64_t stacked_bytes_of(uint32_t format, int64_t rank, int64_t k);

// What a linear over this format reads: INFENG_ACT_F32 or INFENG_ACT_INT8_G64.
uint32_t activation_of(uint32_t format);

// The same of rows whose scales are for `group` inputs: formats with integer sub-scales tell them apart.
uint32_t activation_of(uint32_t format, int64_t group);

struct Weight {
  infeng_weight abi;
  std::shared_ptr<const void> owner;  // keeps `abi.data` alive
};

// Checks sizes and alignment; `available` counts the bytes from `data` on.
std::shared_ptr<const Weight> make_weight(uint32_t format, int64_t n, int64_t k, int64_t panels, int64_t panel_bytes,
                                          const void* data, int64_t available, std::shared_ptr<const void> owner);

}  // namespace infeng
