// Choice of row scales, sub-scales, zero points and units for the formats with integer sub-scales (docs/numerics.md,
// "Quantization rule").
#pragma once

#include <infeng/extension/panel_p32.h>

#include <cstdint>

#include "quantize.h"

namespace infeng {

inline constexpr int kRowScaleCandidates = 4;

// Candidate `index` for an output's scale d, from its largest magnitude; 0 if the row counts as zero.
void row_scales(const float amax[kLanes], int index, float d[kLanes]);

// Searches the best s and z under d; `error` becomes the sum of (x - d s (u - z))^2.
void search_sub_scale(SubGrid grid, GroupInputs x, const float d[kLanes], SubScale* best, float error[kLanes]);

// Computes u under d, s and z, and w = s (u - z).
void assign_units(SubGrid grid, GroupInputs x, const float d[kLanes], const SubScale& sub, uint8_t u[][kLanes],
                  int8_t w[][kLanes]);

// Adds x w and w^2 of 32 inputs, ascending, to the sums of each output.
void add_products(GroupInputs x, const int8_t w[][kLanes], double xw[kLanes], double ww[kLanes]);

}  // namespace infeng
