// Chooses the parameters of the formats with integer sub-scales, w = d s (u - z), before codes are chosen, and the
// scale of each output again when its codes are known.
#pragma once

#include <infeng/extension/p32_grid.h>

#include <cstdint>

namespace infeng::calibration {

// The parameters of a matrix (n, k) in groups of 32 inputs.
struct SubScales {
  float* d;   // (n)
  int8_t* s;  // (n, groups)
  int8_t* z;  // (n, groups)
};

// w: (n, k). weight: (k), the cost of an error of each input. Candidates are those of the rule "intB-p32" of
// docs/numerics.md. Each row gets the d, and each group the s and z under it, with the least sum of weight * error^2;
// the first of equal costs wins. Sums in binary64 over 8 lanes, inputs ascending, then a tree.
void choose_sub_scales(const float* w, int64_t n, int64_t k, const double* weight, SubGrid grid, SubScales out,
                       int threads);

// d = (w' H q) / (q' H q) of each row: the scale with the least loss for the integers q = s (u - z), (n, k), by the
// statistic h, (k, k) symmetric. A d that would not be positive stays unchanged. H q in binary32 by fma, products with
// it in binary64, inputs ascending.
void refit_scales(const float* w, const int8_t* q, int64_t n, int64_t k, const double* h, float* d, int threads);

}  // namespace infeng::calibration
