// The parameters of the formats with integer sub-scales, w = d s (u - z): chosen before any code is, and the scale of
// each output once more when its codes are known.
#pragma once

#include <infeng/extension/p32_grid.h>

#include <cstdint>

namespace infeng::calibration {

// Of a matrix (n, k) in groups of 32 inputs.
struct SubScales {
  float* d;   // (n)
  int8_t* s;  // (n, groups)
  int8_t* z;  // (n, groups)
};

// w is (n, k), weight[k] what an error of each input costs. Candidates are those of the rule "intB-p32" of
// docs/numerics.md; of each row the d, and under it of each group the s and z, with the least sum of weight * error^2;
// the first of equal costs stays. Sums in binary64 over 8 lanes, inputs ascending, then a tree.
void choose_sub_scales(const float* w, int64_t n, int64_t k, const double* weight, SubGrid grid, SubScales out,
                       int threads);

// d = (w' H q) / (q' H q) of each row: the scale under which the integers q = s (u - z), (n, k), lose least by the
// statistic h, (k, k) symmetric. One that would not be positive stays as it is. H q in binary32 by fma,
// products with it in binary64, inputs ascending.
void refit_scales(const float* w, const int8_t* q, int64_t n, int64_t k, const double* h, float* d, int threads);

}  // namespace infeng::calibration
