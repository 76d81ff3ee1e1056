// The factors H = L D L' of a symmetric positive definite matrix, in binary64, blocked, in equal bits for every number
// of threads.
#pragma once

#include <cstdint>

namespace infeng::calibration {

// a is (k, k): its lower triangle becomes L below the diagonal, and its diagonal D; the diagonal of L is 1.
//
// Column blocks of 64, ascending: products within a block are subtracted without contraction, products with earlier
// blocks by fma, columns ascending. Returns the first column whose D is not positive, or -1.
int64_t factor(double* a, int64_t k, int threads);

}  // namespace infeng::calibration
