// Conversions between f32 and the 16-bit floats, round to nearest even, without libm or special instructions.
// SPDX-License-Identifier: Apache-2.0
#ifndef INFENG_EXTENSION_HALF_H
#define INFENG_EXTENSION_HALF_H

#include <infeng/extension/clones.h>

#include <bit>
#include <cstdint>

namespace infeng {

// For finite values only: callers test the exponent bits for infinity and NaN.
INFENG_INLINE float f32_from_f16(uint16_t half) {
  const float magnitude = std::bit_cast<float>(uint32_t(half & 0x7fffu) << 13) * 0x1p112f;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | uint32_t(half & 0x8000u) << 16);
}

INFENG_INLINE float f32_from_bf16(uint16_t half) { return std::bit_cast<float>(uint32_t(half) << 16); }

// Returns infinity (all exponent bits set) if the value does not fit.
INFENG_INLINE uint16_t f16_from_f32(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = bits >> 16 & 0x8000u;
  uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude >= 0x477ff000u) return uint16_t(sign | 0x7c00u);  // 65520 and above
  if (magnitude < 0x38800000u) {                                  // below 2^-14: a multiple of 2^-24
    const float steps = std::bit_cast<float>(magnitude) * 0x1p24f + 0x1p23f;
    return uint16_t(sign | (std::bit_cast<uint32_t>(steps) & 0x7ffu));
  }
  magnitude += 0xfffu + (magnitude >> 13 & 1u);
  return uint16_t(sign | (magnitude - (112u << 23)) >> 13);
}

INFENG_INLINE uint16_t bf16_from_f32(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  return uint16_t((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

}  // namespace infeng

#endif  // INFENG_EXTENSION_HALF_H
