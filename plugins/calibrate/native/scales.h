// Chooses the scale of every group of inputs before codes are chosen: the scale whose rounding costs least, weighted by
// the statistic's diagonal.
#pragma once

#include <cstdint>

namespace infeng::calibration {

// w: (n, k). weight: (k), the cost of an error of each input. scales: (n, groups) for groups of `group` inputs. Codes
// are in [low, high]. half: scales are rounded to fp16 and stay finite.
//
// Candidates are e / d with the group's value e of largest magnitude and d = low times 1, 15/16, 17/16 ... 21/16, or
// high; then the least-squares fit to the best candidate's codes. The first of equal costs wins. Sums in binary64,
// inputs ascending.
void choose_scales(const float* w, int64_t n, int64_t k, const double* weight, int64_t group, int low, int high,
                   bool half, float* scales, int threads);

}  // namespace infeng::calibration
