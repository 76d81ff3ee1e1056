// The second moments of a linear op's inputs, which say how much an error of each weight costs, and those of other
// values with them.
#pragma once

#include <cstdint>

namespace infeng::calibration {

// h[i][j] += sum over the rows of x[row][i] * x[row][j], for j >= i; x is (rows, k), h (k, k) of which the rest stays.
//
// Blocks of 256 rows from the first row on: products and sums of a block in binary32 in the order of its rows, without
// contraction; blocks are added in binary64. So the result depends on how calls cut the rows only at multiples of 256.
void add_gram(const float* x, int64_t rows, int64_t k, double* h, int threads);

// c[i][j] += sum over the rows of y[row][i] * x[row][j]; y is (rows, m), x (rows, k), c (m, k). Sums as of `add_gram`.
void add_cross(const float* y, int64_t m, const float* x, int64_t rows, int64_t k, double* c, int threads);

}  // namespace infeng::calibration
