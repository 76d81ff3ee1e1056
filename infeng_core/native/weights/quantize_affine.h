// Choosing the scales, minima and units of the formats with minima. The rule is in docs/numerics.md, "Quantization
// rule".
#pragma once

#include <cstdint>

#include "weights/quantize.h"

namespace infeng {

inline constexpr int kAffineGroup = 32;     // inputs of one sub-scale and minimum
inline constexpr int kAffineGroups = 8;     // most of them in a superblock
inline constexpr float kMostByte = 255.0f;  // sub-scale or minimum
inline constexpr float kMostUnit = 15.0f;

// The first `groups` groups of 32 inputs of 16 outputs; the last may have fewer inputs, those behind it do not count.
struct AffineInputs {
  const float (*x)[kLanes];
  int64_t count;  // inputs

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
  uint8_t u[kAffineGroups * kAffineGroup][kLanes];  // 0 behind the last input
};

// Returns a mask of the outputs whose d or e would be too large for fp16.
uint32_t quantize_affine(const AffineInputs& inputs, AffineBlock* out);

}  // namespace infeng
