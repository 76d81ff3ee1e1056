// The scale of every group of inputs, chosen before the codes for the least rounding loss by the statistic's diagonal.
#pragma once

#include <cstdint>

namespace infeng::calibration {

// w is (n, k), weight[k] the loss per squared error of each input, scales (n, groups) for groups of `group` inputs;
// codes are from low to high. half: scales are rounded to fp16 and stay finite there.
//
// Candidates are e / d, e the group's value of largest magnitude: d = low times 1, 15/16, 17/16 ... 21/16, and high;
// then the least-squares fit to the best one's codes. The first of equal losses is kept. Sums are in binary64, inputs
// ascending.
void choose_scales(const float* w, int64_t n, int64_t k, const double* weight, int64_t group, int low, int high,
                   bool half, float* scales, int threads);

}  // namespace infeng::calibration
