// Panels of f32 and bf16.
// SPDX-License-Identifier: Apache-2.0
#ifndef INFENG_EXTENSION_PANEL_FLOATS_H
#define INFENG_EXTENSION_PANEL_FLOATS_H

#include <infeng/extension/half.h>
#include <infeng/extension/panel.h>

#include <cstring>

namespace infeng {

struct F32Layout {
  static int64_t bytes(int64_t k) { return k * kLanes * 4; }

  static void read(const void* panel, int64_t g, Group w, Integers, Scales) {
    std::memcpy(w, static_cast<const Group*>(panel) + g, sizeof(Group));
  }
};

// Two inputs of an output lie side by side.
struct Bf16Layout {
  using Pairs = uint16_t[kGroup / 2][kLanes][2];

  static int64_t bytes(int64_t k) { return k * kLanes * 2; }

  static void read(const void* panel, int64_t g, Group w, Integers, Scales) {
    Pairs pairs;
    std::memcpy(pairs, static_cast<const Pairs*>(panel) + g, sizeof pairs);
    for (int k = 0; k < kGroup; k++) {
      for (int n = 0; n < kLanes; n++) w[k][n] = f32_from_bf16(pairs[k / 2][n][k % 2]);
    }
  }
};

}  // namespace infeng

#endif  // INFENG_EXTENSION_PANEL_FLOATS_H
