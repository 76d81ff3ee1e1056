// Panels of int4-a256 and int4-a128: w = d[n] * s u - e[n] * t, with bytes s and t for every 32 inputs of an output,
// and fp16 d and e for every superblock of 256 or 128.
// SPDX-License-Identifier: Apache-2.0
#ifndef INFENG_EXTENSION_PANEL_AFFINE_H
#define INFENG_EXTENSION_PANEL_AFFINE_H

#include <infeng/extension/half.h>
#include <infeng/extension/panel.h>

#include <cstring>

namespace infeng {

inline constexpr int kAffineGroup = 32;  // inputs that share a sub-scale and a minimum

template <int kSuper>
struct AffineLayout {
  static constexpr int64_t kBlocks = kSuper / kGroup;  // of 64 inputs in a superblock
  static constexpr int64_t kBlock = 9 * kLine;         // a line of s and t, 8 of nibbles
  static constexpr int64_t kSuperblock = kLine + kBlocks * kBlock;

  static int64_t bytes(int64_t k) { return (k + kSuper - 1) / kSuper * kLine + k / kGroup * kBlock; }
  static int64_t superblock_at(int64_t g) { return g / kBlocks * kSuperblock; }
  static int64_t block_at(int64_t g) { return superblock_at(g) + kLine + g % kBlocks * kBlock; }

  // Offset of s of group `q` of 32 inputs; t is two bytes further.
  static int64_t scale_at(int64_t q, int n) { return block_at(q / 2) + 4 * n + q % 2; }
  // Byte 4n + j of line l holds input 4l + j below and input 4 (l + 4) + j above.
  static int64_t byte_at(int64_t q, int k, int n) {
    return block_at(q / 2) + kLine + q % 2 * (4 * kLine) + k / 4 % 4 * kLine + 4 * n + k % 4;
  }

  static void write_half(uint8_t* line, int n, uint16_t half) { std::memcpy(line + 2 * n, &half, sizeof half); }
  static uint16_t read_half(const uint8_t* line, int n) {
    uint16_t half;
    std::memcpy(&half, line + 2 * n, sizeof half);
    return half;
  }
  static void write_unit(uint8_t* panel, int64_t q, int k, int n, uint8_t u) {
    panel[byte_at(q, k, n)] |= uint8_t(u << (k < 16 ? 0 : 4));
  }

  static void read(const void* data, int64_t g, Group w, Integers, Scales) {
    const auto* panel = static_cast<const uint8_t*>(data);
    const uint8_t* halves = panel + superblock_at(g);
    for (int n = 0; n < kLanes; n++) {
      const float d = f32_from_f16(read_half(halves, n)), e = f32_from_f16(read_half(halves, kLanes + n));
      for (int k = 0; k < kGroup; k++) {
        const int64_t q = 2 * g + k / kAffineGroup;
        const int i = k % kAffineGroup;
        const int u = panel[byte_at(q, i, n)] >> (i < 16 ? 0 : 4) & 15;
        const uint8_t* scale = panel + scale_at(q, n);
        w[k][n] = d * float(scale[0] * u) - e * float(scale[2]);
      }
    }
  }
};

}  // namespace infeng

#endif  // INFENG_EXTENSION_PANEL_AFFINE_H
