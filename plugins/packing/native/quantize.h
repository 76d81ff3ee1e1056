// Choice of scales and integers for weights (docs/numerics.md, "Quantization rule"). 16 outputs lie side by side,
// inputs ascend, and operations are plain IEEE, so that every CPU computes the same result.
#pragma once

#include <infeng/extension/clones.h>
#include <infeng/extension/panel.h>

#include <cstdint>

namespace infeng {

inline constexpr float kSmallest = 0x1p-100f;  // a row whose largest magnitude is below counts as zero

// Rounds ties to even if |x| < 2^22, which a clamp ensures.
INFENG_INLINE float round_even(float x) { return (x + 0x1.8p23f) - 0x1.8p23f; }

INFENG_INLINE float clamped(float x, float low, float high) {
  x = x < high ? x : high;
  return x > low ? x : low;
}

// One group's inputs: x[k][n] for 16 outputs n.
using GroupInputs = float (*)[kLanes];
using GroupIntegers = int8_t (*)[kLanes];

// Chooses q in [-8, 7] and an fp16 scale per output for `count` inputs. Returns a mask of the outputs whose largest
// magnitude divided by -8 is too large for an fp16 scale.
uint32_t quantize_int4(GroupInputs x, int count, GroupIntegers q, uint16_t scale[kLanes]);

// Chooses q in [-127, 127] and the fp16 scale nearest to amax / 127 per output. Returns a mask of the outputs whose
// scale is too large for fp16.
uint32_t quantize_int8_group(GroupInputs x, int count, GroupIntegers q, uint16_t scale[kLanes]);

// Rounds to q in [-127, 127] under the scale amax / 127 of each output.
void quantize_int8(GroupInputs x, int count, const float amax[kLanes], GroupIntegers q);

// The f32 scale of an int8 row; 0 where the row counts as zero.
float int8_scale(float amax);

}  // namespace infeng
