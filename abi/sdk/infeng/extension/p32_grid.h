// The ranges of integers in the formats with sub-scales, w = d s (u - z); see docs/format.md.
// SPDX-License-Identifier: Apache-2.0
#ifndef INFENG_EXTENSION_P32_GRID_H
#define INFENG_EXTENSION_P32_GRID_H

namespace infeng {

// s and z share 8 bits: s is in [1, most_scale], z and u are in [0, most_unit].
struct SubGrid {
  int bits;  // of a unit
  constexpr int most_scale() const { return 1 << (8 - bits); }
  constexpr int most_unit() const { return (1 << bits) - 1; }
};

inline constexpr int kSubGroup = 32;  // inputs that share a sub-scale
inline constexpr int kLowest = -128;  // bounds of s (u - z)
inline constexpr int kHighest = 127;

}  // namespace infeng

#endif  // INFENG_EXTENSION_P32_GRID_H
