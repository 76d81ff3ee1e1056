// Packed weights and the sizes of their panels (docs/format.md).
#pragma once

#include <infeng/abi.h>
#include <infeng/extension/panel.h>

#include <memory>

namespace infeng {

class Device;

inline constexpr int64_t kPanel = 16;    // outputs of one panel
inline constexpr int64_t kTailRows = 8;  // rank rows of INFENG_I8T4 of which one has 8 bits, the others 4

// Bytes of an INFENG_F32, INFENG_I32, INFENG_BF16 or INFENG_I8.
inline int64_t dtype_bytes(int64_t dtype) { return dtype == INFENG_I8 ? 1 : dtype == INFENG_BF16 ? 2 : 4; }

// The weight format in which the A of an adapter with this dtype is stored.
inline uint32_t adapter_format(uint32_t dtype) {
  if (dtype == INFENG_F32) return INFENG_WEIGHT_F32;
  return dtype == INFENG_BF16 ? INFENG_WEIGHT_BF16 : INFENG_WEIGHT_INT8_ROW;
}

// Bytes of one panel of `k` inputs. Throws Error "unsupported" for the reserved formats.
int64_t panel_bytes_of(uint32_t format, int64_t k);

// Bytes of the A of an adapter with this dtype: `rank` stacked rows in panels of 16; a last panel of 8 rows or fewer is
// folded (see infeng_lora_segment).
int64_t stacked_bytes_of(uint32_t dtype, int64_t rank, int64_t k);

// Bytes of one panel of its B.
inline int64_t expand_bytes_of(uint32_t dtype, int64_t rank) {
  return dtype == INFENG_I8T4 ? rank / kTailRows * (kPanel + (kTailRows - 1) * kPanel / 2)
                              : rank * kPanel * dtype_bytes(dtype);
}

// The activation that a linear over this format reads: INFENG_ACT_F32 or INFENG_ACT_INT8_G64.
uint32_t activation_of(uint32_t format);

// The same for activations whose scales span `group` inputs, which only formats with integer sub-scales distinguish.
uint32_t activation_of(uint32_t format, int64_t group);

struct Weight {
  infeng_weight abi;
  std::shared_ptr<const void> owner;  // keeps `abi.data` alive
  const Device* device = nullptr;     // in whose memory `abi.data` is; NULL: the host's
};

// Makes a weight after checking sizes and alignment; `available`: bytes from `data` on.
std::shared_ptr<const Weight> make_weight(uint32_t format, int64_t n, int64_t k, int64_t panels, int64_t panel_bytes,
                                          const void* data, int64_t available, std::shared_ptr<const void> owner);

}  // namespace infeng
