// H = L D L' of a symmetric positive definite matrix in binary64, blocked, the same bits for every number of threads.
#pragma once

#include <cstdint>

namespace infeng::calibration {

// a is (k, k): its lower triangle, diagonal included, becomes L below the diagonal (which is 1) and D on it.
//
// Column blocks of 64, ascending: within a block products are subtracted without contraction, of the blocks before by
// fma, one after the other, columns ascending. Returns the first column whose D is not positive, or -1.
int64_t factor(double* a, int64_t k, int threads);

}  // namespace infeng::calibration
