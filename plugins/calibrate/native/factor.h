// H = L D L' of a symmetric positive definite matrix in binary64, blocked; the bits do not depend on the threads.
#pragma once

#include <cstdint>

namespace infeng::calibration {

// a is (k, k): its lower triangle, diagonal included, becomes L below the diagonal (which is 1) and D on it.
//
// Column blocks of 64 are processed in ascending order. Within a block, products are subtracted without contraction;
// products of earlier blocks are subtracted by fma, columns ascending. Returns the first column whose D is not
// positive, or -1.
int64_t factor(double* a, int64_t k, int threads);

}  // namespace infeng::calibration
