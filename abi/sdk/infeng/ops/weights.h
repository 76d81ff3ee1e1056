// Integer weight formats: offsets of lines, scales and lanes in a 16-row panel. docs/format.md draws the bytes.
//   lanes of a line are outputs: byte 4n + j belongs to output n. SPDX-License-Identifier: Apache-2.0
#ifndef INFENG_OPS_WEIGHTS_H
#define INFENG_OPS_WEIGHTS_H

#include <infeng/ops/args.h>

namespace infeng {
namespace {

// 16 f32 scales, then k/4 lines of u8 = q + 128.
struct Int8Row {
  static constexpr uint32_t kFormat = INFENG_WEIGHT_INT8_ROW;
  static constexpr int kBits = 8;
  static constexpr int kSteps = 1;            // scales per 64 k
  static constexpr int kFetchLines = kLanes;  // lines of memory per 64 k
  static constexpr int64_t kFetchFrom = 0;    // where they start, from lines_at

  static INFENG_INLINE int64_t lines_at(int64_t g) { return kLine + g * (kGroup * kLanes); }
  template <Vector V>
  static INFENG_INLINE auto scale(const uint8_t* panel, int64_t, int) {
    return V::load((const float*)panel);
  }
};

// Per 64 k one line with 2 x 16 f16 scales, then 16 lines of u8 = q + 128, 8 for each half.
struct Int8G32 {
  static constexpr uint32_t kFormat = INFENG_WEIGHT_INT8_G32;
  static constexpr int kBits = 8;
  static constexpr int kSteps = 2;
  static constexpr int kFetchLines = 1 + kLanes;
  static constexpr int64_t kFetchFrom = -kLine;
  static constexpr int64_t kBlock = (1 + kLanes) * kLine;

  static INFENG_INLINE int64_t lines_at(int64_t g) { return g * kBlock + kLine; }
  template <Vector V>
  static INFENG_INLINE auto scale(const uint8_t* panel, int64_t g, int step) {
    return V::load_f16((const uint16_t*)(panel + g * kBlock + step * (2 * kLanes)));
  }
};

// Nibbles, q + 8. A step has `kStepLines` lines; line l holds input 4l + j in the low nibble and input 4 (l +
// kStepLines) + j in the high one.
template <uint32_t Format, int Steps, int GroupsPerBlock>
struct Int4 {
  static constexpr uint32_t kFormat = Format;
  static constexpr int kBits = 4;
  static constexpr int kSteps = Steps;
  static constexpr int kStepLines = 8 / Steps;
  static constexpr int kFetchLines = 9;
  static constexpr int64_t kFetchFrom = -kLine;
  // A superblock: one line with 2 x 16 f16 scales, then 8 lines per 64 k. A last half superblock has a whole scale
  // line.
  static constexpr int64_t kBlock = kLine + GroupsPerBlock * 8 * kLine;

  static INFENG_INLINE int64_t lines_at(int64_t g) {
    return g / GroupsPerBlock * kBlock + kLine + g % GroupsPerBlock * (8 * kLine);
  }
  template <Vector V>
  static INFENG_INLINE auto scale(const uint8_t* panel, int64_t g, int step) {
    const int64_t at = g / GroupsPerBlock * kBlock + (g % GroupsPerBlock + step) * (2 * kLanes);
    return V::load_f16((const uint16_t*)(panel + at));
  }
};
using Int4G64 = Int4<INFENG_WEIGHT_INT4_G64, 1, 2>;  // a superblock is 128 k
using Int4G32 = Int4<INFENG_WEIGHT_INT4_G32, 2, 1>;  // a superblock is 64 k

// Integers with integer sub-scales: a weight is d[n] * s * (u - z), with s and z for every 32 k of an output. A panel
// begins with 16 f32 scales d; superblocks of 128 k follow. A superblock has a line of sub-scales, whose byte 4n + 2 (h
// % 2) + h / 2 holds s - 1 in its low bits and z in its high bits for quarter h of output n, and then for each quarter
// 4 lines of nibbles and the lines of the upper bits of u. A last half superblock has a whole line of sub-scales.
template <uint32_t Format, int Bits>
struct P32 {
  static constexpr uint32_t kFormat = Format;
  static constexpr int kBits = Bits;                // of u; 32 k take as many lines
  static constexpr int kSteps = 1;                  // sums per 64 k
  static constexpr int kFetchLines = 1 + 2 * Bits;  // lines of memory per 64 k
  static constexpr int64_t kFetchFrom = -kLine;     // where they start, from lines_at
  static constexpr int64_t kBlock = (1 + 4 * Bits) * kLine;

  static INFENG_INLINE int64_t lines_at(int64_t g) {
    return kLine + g / 2 * kBlock + kLine + g % 2 * (2 * Bits * kLine);
  }
  static INFENG_INLINE int64_t scales_at(int64_t g) { return kLine + g / 2 * kBlock; }
};
using Int4P32 = P32<INFENG_WEIGHT_INT4_P32, 4>;
using Int5P32 = P32<INFENG_WEIGHT_INT5_P32, 5>;
using Int6P32 = P32<INFENG_WEIGHT_INT6_P32, 6>;

// Nibbles with sub-scales and minima: a weight is d[n] * (s u) - e[n] * t, with bytes s and t for every 32 k of an
// output and fp16 d and e for every superblock. A superblock of 64 << kShift k has a line with 16 d and 16 e, and then
// per 64 k a line whose bytes 4n + h and 4n + 2 + h are s and t of half h of output n, and 4 lines of nibbles for each
// half. The last superblock ends with k.
struct AffinePanel {
  int shift;

  INFENG_INLINE int64_t lines_at(int64_t g) const { return scales_at(g) + kLine; }
  INFENG_INLINE int64_t scales_at(int64_t g) const { return kLine * ((g >> shift) + 1 + 9 * g); }
  INFENG_INLINE int64_t superblock_at(int64_t g) const {
    const int64_t block = g >> shift;
    return kLine * (block + 9 * (block << shift));
  }
  INFENG_INLINE bool begins(int64_t g) const { return (g & ((1 << shift) - 1)) == 0; }
};

template <uint32_t Format, int Shift>
struct Affine {
  static constexpr uint32_t kFormat = Format;
  static constexpr AffinePanel kPanel{Shift};
};
using Int4A256 = Affine<INFENG_WEIGHT_INT4_A256, 2>;
using Int4A128 = Affine<INFENG_WEIGHT_INT4_A128, 1>;

}  // namespace
}  // namespace infeng
#endif  // INFENG_OPS_WEIGHTS_H
