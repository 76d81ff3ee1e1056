// Choosing row scales, sub-scales, zero points and units of the formats with integer sub-scales. The rule is in
// docs/numerics.md, "Quantization rule".
#pragma once

#include <infeng/extension/p32_grid.h>

#include <cstdint>

#include "weights/quantize.h"

namespace infeng {

inline constexpr int kRowScaleCandidates = 4;

// The sub-scales of 32 inputs of 16 outputs; integers, in f32.
struct SubScale {
  float s[kLanes];
  float z[kLanes];
};

// Candidate `index` of an output's scale d, by its largest magnitude; 0 where the row counts as zero.
void row_scales(const float amax[kLanes], int index, float d[kLanes]);

// The best s and z under d that is found; returns in `error` the sum of (x - d s (u - z))^2.
void search_sub_scale(SubGrid grid, GroupInputs x, const float d[kLanes], SubScale* best, float error[kLanes]);

// u under d, s and z, and w = s (u - z).
void assign_units(SubGrid grid, GroupInputs x, const float d[kLanes], const SubScale& sub, uint8_t u[][kLanes],
                  int8_t w[][kLanes]);

// Adds x w and w^2 of 32 inputs, ascending, to the sums of each output.
void add_products(GroupInputs x, const int8_t w[][kLanes], double xw[kLanes], double ww[kLanes]);

}  // namespace infeng
