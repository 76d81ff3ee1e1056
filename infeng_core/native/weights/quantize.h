// Choosing scales and integers for weights; 16 outputs side by side, inputs ascending, plain IEEE operations, so that
// the result is the same on every CPU. The rule is in docs/numerics.md, "Quantization rule".
#pragma once

#include <cstdint>

namespace infeng {

inline constexpr int kLanes = 16;

// One group's inputs: x[k][n] for 16 outputs n.
using GroupInputs = float (*)[kLanes];
using GroupIntegers = int8_t (*)[kLanes];

// q in [-8, 7] and an fp16 scale per output for `count` inputs. Returns a mask of the outputs whose largest magnitude
// divided by -8 is too large for an fp16 scale.
uint32_t quantize_int4(GroupInputs x, int count, GroupIntegers q, uint16_t scale[kLanes]);

// q in [-127, 127] and the fp16 scale nearest to amax / 127 per output. Returns a mask of the outputs whose scale is
// too large for fp16.
uint32_t quantize_int8_group(GroupInputs x, int count, GroupIntegers q, uint16_t scale[kLanes]);

// q in [-127, 127] by one scale per output that is already known: scale = amax / 127.
void quantize_int8(GroupInputs x, int count, const float amax[kLanes], GroupIntegers q);

// The f32 scale of an int8 row; 0 where the row counts as zero.
float int8_scale(float amax);

}  // namespace infeng
