// Panels of int8-row, int8-g32, int4-g64 and int4-g32: integers with one scale per output, or per group of its inputs.
// SPDX-License-Identifier: Apache-2.0
#ifndef INFENG_EXTENSION_PANEL_INTEGERS_H
#define INFENG_EXTENSION_PANEL_INTEGERS_H

#include <infeng/extension/half.h>
#include <infeng/extension/panel.h>

#include <cstring>

namespace infeng {

// 16 fp16 scales take half a line.
inline void write_halves(uint8_t* line, const float scale[kLanes]) {
  uint16_t half[kLanes];
  for (int n = 0; n < kLanes; n++) half[n] = f16_from_f32(scale[n]);
  std::memcpy(line, half, sizeof half);
}

inline void read_halves(const uint8_t* line, float scale[kLanes]) {
  uint16_t half[kLanes];
  std::memcpy(half, line, sizeof half);
  for (int n = 0; n < kLanes; n++) scale[n] = f32_from_f16(half[n]);
}

// 64 inputs take 16 lines: byte 4n + j of line l holds q + 128 of input 4l + j.
inline constexpr int64_t kByteLines = kGroup * kLanes;

inline void write_bytes(uint8_t* lines, ConstIntegers q) {
  for (int k = 0; k < kGroup; k++) {
    for (int n = 0; n < kLanes; n++) lines[k / 4 * kLine + 4 * n + k % 4] = uint8_t(q[k][n] + 128);
  }
}

inline void read_bytes(const uint8_t* lines, Integers q) {
  for (int k = 0; k < kGroup; k++) {
    for (int n = 0; n < kLanes; n++) q[k][n] = int8_t(lines[k / 4 * kLine + 4 * n + k % 4] - 128);
  }
}

struct Int8Row {
  static constexpr CodeGrid kGrid{0, -127, 127, false};

  static int64_t bytes(int64_t k) { return (1 + k / 4) * kLine; }

  static void write(uint8_t* panel, int64_t g, ConstIntegers q, ConstScales scale) {
    std::memcpy(panel, scale[0], sizeof scale[0]);
    write_bytes(panel + kLine + g * kByteLines, q);
  }

  static void read(const void* data, int64_t g, Group, Integers q, Scales scale) {
    const auto* panel = static_cast<const uint8_t*>(data);
    std::memcpy(scale[0], panel, sizeof scale[0]);
    read_bytes(panel + kLine + g * kByteLines, q);
  }
};

// A line holds the scales of two groups of 32 inputs; the groups' bytes follow.
struct Int8G32 {
  static constexpr CodeGrid kGrid{32, -128, 127, true};
  static constexpr int64_t kSuperblock = kLine + kByteLines;

  static int64_t bytes(int64_t k) { return k / kGroup * kSuperblock; }

  static void write(uint8_t* panel, int64_t g, ConstIntegers q, ConstScales scale) {
    uint8_t* superblock = panel + g * kSuperblock;
    for (int h = 0; h < 2; h++) write_halves(superblock + h * (kLine / 2), scale[h]);
    write_bytes(superblock + kLine, q);
  }

  static void read(const void* data, int64_t g, Group, Integers q, Scales scale) {
    const uint8_t* superblock = static_cast<const uint8_t*>(data) + g * kSuperblock;
    for (int h = 0; h < 2; h++) read_halves(superblock + h * (kLine / 2), scale[h]);
    read_bytes(superblock + kLine, q);
  }
};

// A superblock is two groups of kSize inputs: a line with the scales of both, the nibbles of the first, the nibbles of
// the second. If the last superblock has one group, its line of scales is still whole.
template <int kSize>
struct Int4 {
  static constexpr CodeGrid kGrid{kSize, -8, 7, true};
  static constexpr int kGroups = kGroup / kSize;
  static constexpr int kLines = kSize / 8;  // of one group
  static constexpr int64_t kSuperblock = kLine + 2 * kLine * kLines;

  static int64_t bytes(int64_t k) { return ((k + 2 * kSize - 1) / (2 * kSize) + k / 8) * kLine; }
  static int64_t scales_at(int64_t group) { return group / 2 * kSuperblock + group % 2 * (kLine / 2); }

  // Byte 4n + j of line l holds input 4l + j below and input 4 (l + kLines) + j above.
  static int64_t byte_at(int64_t group, int k, int n) {
    return group / 2 * kSuperblock + kLine + group % 2 * kLine * kLines + k / 4 * kLine + 4 * n + k % 4;
  }

  static void write(uint8_t* panel, int64_t g, ConstIntegers q, ConstScales scale) {
    for (int h = 0; h < kGroups; h++) {
      const int64_t group = g * kGroups + h;
      write_halves(panel + scales_at(group), scale[h]);
      const ConstIntegers low = q + h * kSize, high = low + kSize / 2;
      for (int k = 0; k < kSize / 2; k++) {
        for (int n = 0; n < kLanes; n++) panel[byte_at(group, k, n)] = uint8_t((low[k][n] + 8) | (high[k][n] + 8) << 4);
      }
    }
  }

  static void read(const void* data, int64_t g, Group, Integers q, Scales scale) {
    const auto* panel = static_cast<const uint8_t*>(data);
    for (int h = 0; h < kGroups; h++) {
      const int64_t group = g * kGroups + h;
      read_halves(panel + scales_at(group), scale[h]);
      int8_t(*low)[kLanes] = q + h * kSize, (*high)[kLanes] = low + kSize / 2;
      for (int k = 0; k < kSize / 2; k++) {
        for (int n = 0; n < kLanes; n++) {
          const int byte = panel[byte_at(group, k, n)];
          low[k][n] = int8_t((byte & 15) - 8);
          high[k][n] = int8_t((byte >> 4) - 8);
        }
      }
    }
  }
};

}  // namespace infeng

#endif  // INFENG_EXTENSION_PANEL_INTEGERS_H
