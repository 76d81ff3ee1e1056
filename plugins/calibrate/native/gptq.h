// Chooses codes column by column; later columns compensate the errors of earlier ones (GPTQ, Frantar et al. 2022, in
// the form of LDLQ, Chee et al. 2023, which needs no inverse).
#pragma once

#include <cstdint>

namespace infeng::calibration {

// The allowed codes of a matrix (n, k): weight = step * code with low <= code <= high, for each row and each `group`
// inputs in the order of the matrix. All arrays are (n, groups); a step of 0 has code 0.
struct Steps {
  const float* step;
  const int8_t *low, *high;
  int64_t group, groups;
};

// order[k]: the inputs in the order of choice. l: (k, k), the result of `factor` for the statistic whose row and column
// i belong to input order[k - 1 - i], so that errors flow from high indices to low ones. codes: (n, k) in the order of
// the matrix. Rows are independent: v = w + sum of error * l over the columns chosen before, first those behind the
// column's block of 64, then those in it, indices ascending, by fma in binary64; code = v / step, clamped and rounded
// to nearest even.
void choose_codes(const float* w, int64_t n, int64_t k, const int32_t* order, const double* l, const Steps& steps,
                  int8_t* codes, int threads);

}  // namespace infeng::calibration
