// What all panels of weights have in common; docs/format.md draws each format.
// SPDX-License-Identifier: Apache-2.0
#ifndef INFENG_EXTENSION_PANEL_H
#define INFENG_EXTENSION_PANEL_H

#include <cstdint>
#include <numeric>

namespace infeng {

inline constexpr int kLanes = 16;      // outputs of a panel
inline constexpr int64_t kGroup = 64;  // inputs of one activation group; K is padded to it
inline constexpr int64_t kLine = 64;   // bytes

using Group = float[kGroup][kLanes];  // x[k][n]

// 64 inputs of 16 outputs in an integer format: q[k][n], and scale[s][n] of their steps, parts that share a scale.
using Integers = int8_t (*)[kLanes];
using Scales = float (*)[kLanes];
using ConstIntegers = const int8_t (*)[kLanes];
using ConstScales = const float (*)[kLanes];

// The integers and scales of a format.
struct CodeGrid {
  int64_t group;  // inputs that share a scale; 0: all inputs of an output
  int low;        // smallest and largest integer; 0 and 0 for floats
  int high;
  bool half;  // scales are fp16, else f32

  constexpr int64_t groups(int64_t k) const { return group == 0 ? 1 : (k + group - 1) / group; }
  // Inputs of a step, the part of 64 inputs that shares a scale.
  constexpr int64_t step() const { return group == 0 ? kGroup : std::gcd(group, kGroup); }
};

// Whether an fp16 is infinite or NaN.
constexpr bool is_infinite(uint16_t half) { return (half & 0x7c00u) == 0x7c00u; }

}  // namespace infeng

#endif  // INFENG_EXTENSION_PANEL_H
