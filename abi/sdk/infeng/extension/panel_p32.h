// Panels of int4-p32, int5-p32 and int6-p32: w = d[n] * s (u - z), with integers s and z for every 32 inputs of an
// output.
// SPDX-License-Identifier: Apache-2.0
#ifndef INFENG_EXTENSION_PANEL_P32_H
#define INFENG_EXTENSION_PANEL_P32_H

#include <infeng/extension/p32_grid.h>
#include <infeng/extension/panel.h>

#include <cstring>
#include <utility>

namespace infeng {

// Sub-scales and zero points of 32 inputs of 16 outputs: integers stored as f32.
struct SubScale {
  float s[kLanes];
  float z[kLanes];
};

using Quarter = uint8_t (*)[kLanes];  // the units of 32 inputs

template <int kBits>
struct P32Layout {
  static constexpr SubGrid kGrid{kBits};
  static constexpr int64_t kSuperblock = (1 + 4 * kBits) * kLine;  // 128 inputs

  static int64_t bytes(int64_t k) { return (1 + (k + 127) / 128) * kLine + 2 * kBits * k; }

  // Offsets of inputs [32 q, 32 q + 32).
  static int64_t scale_at(int64_t q, int n) { return kLine + q / 4 * kSuperblock + 4 * n + 2 * (q % 2) + q % 4 / 2; }
  static int64_t lines_at(int64_t q) { return 2 * kLine + q / 4 * kSuperblock + q % 4 * (kBits * kLine); }

  // The line behind the nibbles, and the shift in its bytes, of the upper bits of line `l` of eight.
  static int upper_line(int l) { return kBits == 5 ? 4 : 4 + l / 4; }
  static int upper_shift(int l) { return kBits == 5 ? l : 2 * (l % 4); }

  static void write(uint8_t* panel, int64_t q, const SubScale& sub, Quarter u) {
    for (int n = 0; n < kLanes; n++) {
      panel[scale_at(q, n)] = uint8_t((int(sub.s[n]) - 1) | int(sub.z[n]) << (8 - kBits));
    }
    uint8_t* lines = panel + lines_at(q);
    for (int k = 0; k < kSubGroup / 2; k++) {
      const uint8_t *low = u[k], *high = u[k + kSubGroup / 2];
      uint8_t* line = lines + k / 4 * kLine + k % 4;
      for (int n = 0; n < kLanes; n++) line[4 * n] = uint8_t((low[n] & 15) | high[n] << 4);
    }
    if (kBits == 4) return;
    for (int k = 0; k < kSubGroup; k++) {
      uint8_t* line = lines + upper_line(k / 4) * kLine + k % 4;
      for (int n = 0; n < kLanes; n++) line[4 * n] |= uint8_t(u[k][n] >> 4 << upper_shift(k / 4));
    }
  }

  // Returns (s, z) of an output.
  static std::pair<int, int> scale_of(const uint8_t* panel, int64_t q, int n) {
    const int byte = panel[scale_at(q, n)];
    return {(byte & (kGrid.most_scale() - 1)) + 1, byte >> (8 - kBits)};
  }
  static int unit_of(const uint8_t* panel, int64_t q, int k, int n) {
    const uint8_t* lines = panel + lines_at(q);
    const int l = k / 4, at = 4 * n + k % 4;
    int u = lines[l % 4 * kLine + at] >> (l < 4 ? 0 : 4) & 15;
    if (kBits > 4) u |= (lines[upper_line(l) * kLine + at] >> upper_shift(l) & ((1 << (kBits - 4)) - 1)) << 4;
    return u;
  }

  static void read(const void* data, int64_t g, Group, Integers w, Scales scale) {
    const auto* panel = static_cast<const uint8_t*>(data);
    std::memcpy(scale[0], panel, sizeof scale[0]);
    for (int n = 0; n < kLanes; n++) {
      for (int h = 0; h < kGroup / kSubGroup; h++) {
        const int64_t q = g * 2 + h;
        const auto [s, z] = scale_of(panel, q, n);
        for (int k = 0; k < kSubGroup; k++) w[h * kSubGroup + k][n] = int8_t(s * (unit_of(panel, q, k, n) - z));
      }
    }
  }
};

}  // namespace infeng

#endif  // INFENG_EXTENSION_PANEL_P32_H
