// Second moments of a linear op's inputs, which give the loss by an error of each weight, and cross moments of other
// values with these inputs.
#pragma once

#include <cstdint>

namespace infeng::calibration {

// h[i][j] += sum over the rows of x[row][i] * x[row][j], for j >= i; x is (rows, k), h (k, k), whose rest stays.
//
// Blocks of 512 rows from the first row on: each column of a block is rounded to integers from -2047 to 2047 with a
// scale of its own, products are summed in 32-bit integers, and these sums times both scales are added in binary64,
// four blocks before the sum is added to h. So calls that cut the rows at multiples of 2048 give equal results. A
// column with a value that is not finite makes every moment with it NaN.
void add_gram(const float* x, int64_t rows, int64_t k, double* h, int threads);

// c[i][j] += sum over the rows of y[row][i] * x[row][j]; y is (rows, m), x (rows, k), c (m, k). Summed like `add_gram`.
void add_cross(const float* y, int64_t m, const float* x, int64_t rows, int64_t k, double* c, int threads);

}  // namespace infeng::calibration
