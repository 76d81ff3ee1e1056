// The second moments of a linear op's inputs, which say how much an error of each weight costs, and those of other
// values with them.
#pragma once

#include <cstdint>

namespace infeng::calibration {

// h[i][j] += sum over the rows of x[row][i] * x[row][j], for j >= i; x is (rows, k), h (k, k) of which the rest stays.
//
// Blocks of 512 rows from the first row on: each column of a block is rounded to integers from -2047 to 2047 under a
// scale of its own, products are summed as integers, which 32 bits hold, and their sums times both scales are added up
// in binary64, four blocks before they are added to h. So the result depends on how calls cut the rows only at
// multiples of 2048. A column with a value that is not finite makes what it is a part of NaN.
void add_gram(const float* x, int64_t rows, int64_t k, double* h, int threads);

// c[i][j] += sum over the rows of y[row][i] * x[row][j]; y is (rows, m), x (rows, k), c (m, k). Sums as of `add_gram`.
void add_cross(const float* y, int64_t m, const float* x, int64_t rows, int64_t k, double* c, int threads);

}  // namespace infeng::calibration
