// Codes, sub-scales and zero points chosen once more, a group of inputs at a time, given all others (coordinate descent
// in blocks).
#pragma once

#include <cstdint>

#include "subscales.h"

namespace infeng::calibration {

// The integers of a matrix (n, k), all to be changed but d: q[n * k] = u - z in the order of the matrix.
struct Integers {
  SubScales scales;
  int8_t* q;
};

// One pass over the groups of 32 inputs. Of each row and group the s (the present one, one less, one more) and the z
// (the present offset in steps of the new s, one less, one more) are tried, codes are chosen under them as
// `choose_codes` does within the group, from its last input to its first, and what loses least by the statistic h +
// damping I, (k, k) symmetric, with all other groups as they are, stays; so no row loses more than before. All in
// binary32, rows by themselves. What other groups ask for, h times the errors, is a product by fma, inputs ascending,
// at the first of each eight groups; of those before a group among the eight the changes are added, group by group.
void descend(const float* w, int64_t n, int64_t k, const double* h, double damping, SubGrid grid, Integers chosen,
             int threads);

}  // namespace infeng::calibration
