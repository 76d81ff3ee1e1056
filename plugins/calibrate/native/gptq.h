// Codes chosen column by column; each column compensates the errors of the columns before it (GPTQ, Frantar et al.
// 2022, in the form of LDLQ, Chee et al. 2023, which needs no inverse).
#pragma once

#include <cstdint>

namespace infeng::calibration {

// The grid of the codes of a matrix (n, k): weight = step * code with low <= code <= high, for each row and group of
// `group` inputs in the order of the matrix; each array is (n, groups). A step of 0 has the code 0.
struct Steps {
  const float* step;
  const int8_t *low, *high;
  int64_t group, groups;
};

// order[k]: the inputs in the order of choice. l, (k, k), is the result of `factor` for the statistic whose row and
// column i belong to input order[k - 1 - i], so errors flow from high indices to low ones. codes is (n, k) in the order
// of the matrix. For each row alone: v = w + sum of error * l over the columns chosen before, first the columns after
// the block of 64, then the columns in it, indices ascending, by fma in binary64; code = v / step, clamped and rounded
// to nearest even.
void choose_codes(const float* w, int64_t n, int64_t k, const int32_t* order, const double* l, const Steps& steps,
                  int8_t* codes, int threads);

}  // namespace infeng::calibration
