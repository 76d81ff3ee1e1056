// Block coordinate descent: codes, sub-scales and zero points of one group of inputs are chosen again, given all
// others.
#pragma once

#include <cstdint>

#include "subscales.h"

namespace infeng::calibration {

// The integers of a matrix (n, k), q[n * k] = u - z in the order of the matrix; everything except d may change.
struct Integers {
  SubScales scales;
  int8_t* q;
};

// One pass over the groups of 32 inputs. For each row and group, candidates for s are the current one, one less and one
// more; candidates for z are the current offset in steps of the new s, one less and one more. Codes are chosen under
// each pair as in `choose_codes`, from the last input of the group to its first. The candidate with the least loss by
// the statistic h + damping I, (k, k) symmetric, with all other groups fixed, is kept, so no row's loss increases.
// Arithmetic is binary32, and rows are independent. The correction for other groups, h times the errors, is a product
// by fma, inputs ascending, at the first of each eight groups; within the eight, changes are added group by group.
void descend(const float* w, int64_t n, int64_t k, const double* h, double damping, SubGrid grid, Integers chosen,
             int threads);

}  // namespace infeng::calibration
