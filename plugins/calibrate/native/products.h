// The one loop of all floating-point matrix products.
#pragma once

#include <cstdint>

namespace infeng::calibration {

inline constexpr int64_t kProductColumns = 32;  // divides `columns` below

// A matrix with element (i, p) at left[i * row + p * step].
template <class T>
struct Left {
  const T* at;
  int64_t row, step;
};

// c[i * c_row + j] += sum over p of left(i, p) * right[p * right_row + j] for `rows` rows and `columns` columns: one
// fma after the other, p ascending, so the bytes are those of std::fma on every processor.
void add_products(Left<float> left, const float* right, int64_t right_row, int64_t count, float* c, int64_t c_row,
                  int64_t rows, int64_t columns);
void add_products(Left<double> left, const double* right, int64_t right_row, int64_t count, double* c, int64_t c_row,
                  int64_t rows, int64_t columns);

}  // namespace infeng::calibration
