// Block coordinate descent: codes, sub-scales and zero points are chosen again, one group of inputs at a time, with all
// others fixed.
#pragma once

#include <cstdint>

#include "subscales.h"

namespace infeng::calibration {

// The integers of a matrix (n, k), all changed except d; q[n * k] = u - z in the order of the matrix.
struct Integers {
  SubScales scales;
  int8_t* q;
};

// One pass over the groups of 32 inputs. For each row and group, candidates of s (the present one, one less, one more)
// and of z (the present offset in steps of the new s, one less, one more) are tried: codes are chosen under them as in
// `choose_codes`, from the group's last input to its first, and the candidate with the least loss by h + damping I,
// (k, k) symmetric, with all other groups fixed, is kept. So the loss of no row grows. All sums are in binary32; rows
// are independent. The gradient, h times the errors, is computed by fma, inputs ascending, at the first of every eight
// groups; within the eight, each group's change is added to it.
void descend(const float* w, int64_t n, int64_t k, const double* h, double damping, SubGrid grid, Integers chosen,
             int threads);

}  // namespace infeng::calibration
