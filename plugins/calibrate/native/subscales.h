// The parameters of the formats with integer sub-scales, w = d s (u - z), chosen before the codes; each output's scale
// d is fitted again when its codes are known.
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

// w is (n, k), weight[k] the loss per squared error of each input. Candidates follow the rule "intB-p32" of
// docs/numerics.md: for each row the d, and for each group the s and z, with the least sum of weight * error^2; the
// first of equal losses is kept. Sums are in binary64 over 8 lanes, inputs ascending, then a tree.
void choose_sub_scales(const float* w, int64_t n, int64_t k, const double* weight, SubGrid grid, SubScales out,
                       int threads);

// d = (w' H q) / (q' H q) of each row: the scale with the least loss of the integers q = s (u - z), (n, k), by the
// statistic h, (k, k) symmetric. A scale that would not become positive stays. H q is computed in binary32 by fma,
// products with it in binary64, inputs ascending.
void refit_scales(const float* w, const int8_t* q, int64_t n, int64_t k, const double* h, float* d, int threads);

}  // namespace infeng::calibration
