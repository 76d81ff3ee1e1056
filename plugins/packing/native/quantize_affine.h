// Choice of scales, minima and units for the formats with minima (docs/numerics.md, "Quantization rule").
#pragma once

#include <infeng/extension/panel_affine.h>

#include <cstdint>

#include "quantize.h"

namespace infeng {

inline constexpr int kAffineGroups = 8;     // the most groups of a superblock
inline constexpr float kMostByte = 255.0f;  // largest sub-scale or minimum
inline constexpr float kMostUnit = 15.0f;

// The inputs of a superblock, in groups of 32; the last group may have fewer.
struct AffineInputs {
  const float (*x)[kLanes];  // (count, 16)
  int64_t count;

  int groups() const { return int((count + kAffineGroup - 1) / kAffineGroup); }
  int size(int group) const {
    const int64_t left = count - int64_t(group) * kAffineGroup;
    return int(left < kAffineGroup ? left : kAffineGroup);
  }
};

// A superblock of 16 outputs: a weight is d * s u - e * t.
struct AffineBlock {
  uint16_t d[kLanes];  // fp16
  uint16_t e[kLanes];
  uint8_t s[kAffineGroups][kLanes];
  uint8_t t[kAffineGroups][kLanes];
  uint8_t u[kAffineGroups * kAffineGroup][kLanes];  // 0 beyond the last input
};

// Quantizes a superblock. Returns a mask of the outputs whose d or e is too large for fp16.
uint32_t quantize_affine(const AffineInputs& inputs, AffineBlock* out);

}  // namespace infeng
