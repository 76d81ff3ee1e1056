// Second moments of a linear op's inputs, which weigh the errors of weights, and mixed moments with other values.
#pragma once

#include <cstdint>

namespace infeng::calibration {

// h[i][j] += sum over the rows of x[row][i] * x[row][j] for j >= i; x is (rows, k), h is (k, k), and its lower triangle
// is unchanged.
//
// Rows are taken in blocks of 512. Each column of a block is rounded to integers from -2047 to 2047 under a scale of
// its own; products are summed exactly in 32 bits, and the sums times both scales are added in binary64, four blocks
// before they are added to h. So cutting the rows into calls at multiples of 2048 does not change the result. A value
// that is not finite makes all moments of its column NaN.
void add_gram(const float* x, int64_t rows, int64_t k, double* h, int threads);

// c[i][j] += sum over the rows of y[row][i] * x[row][j]; y is (rows, m), x (rows, k), c (m, k). Sums as of `add_gram`.
void add_cross(const float* y, int64_t m, const float* x, int64_t rows, int64_t k, double* c, int threads);

}  // namespace infeng::calibration
