// Codes chosen column by column, each column taking over the errors of those before it (GPTQ, Frantar et al. 2022, in
// the form of LDLQ, Chee et al. 2023, which needs no inverse).
#pragma once

#include <cstdint>

namespace infeng::calibration {

// What the codes of a matrix (n, k) may be: weight = step * code with low <= code <= high, for each row and group of
// `group` inputs in the order of the matrix; (n, groups) each, a step of 0 takes code 0.
struct Steps {
  const float* step;
  const int8_t *low, *high;
  int64_t group, groups;
};

// order[k]: the inputs from the first that is chosen to the last. l is (k, k), what `factor` made of the statistic
// whose row and column i belong to input order[k - 1 - i]: so errors flow from high indices to low ones. codes is (n,
// k) in the order of the matrix. For each row alone: v = w + sum of error * l over the columns chosen before, first
// those behind the column's block of 64, then those in it, indices ascending, by fma in binary64; code = v / step,
// clamped and rounded to nearest even.
void choose_codes(const float* w, int64_t n, int64_t k, const int32_t* order, const double* l, const Steps& steps,
                  int8_t* codes, int threads);

}  // namespace infeng::calibration
