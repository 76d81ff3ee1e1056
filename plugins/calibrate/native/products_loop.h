// The loop of `add_products` over a processor's lanes. No include guard: each part of products.cc includes it in a
// namespace of its own, compiled for its processor.

// The sums of kRows rows and two vectors of columns stay in registers.
template <class V, int kRows>
INFENG_INLINE void tile(Left<typename V::Number> left, const typename V::Number* right, int64_t right_row,
                        int64_t count, typename V::Number* c, int64_t c_row) {
  typename V::Lanes low[kRows], high[kRows];
  for (int i = 0; i < kRows; i++) {
    low[i] = V::load(c + i * c_row);
    high[i] = V::load(c + i * c_row + V::kLanes);
  }
  for (int64_t p = 0; p < count; p++) {
    const typename V::Lanes a = V::load(right + p * right_row), b = V::load(right + p * right_row + V::kLanes);
#pragma GCC unroll 8
    for (int i = 0; i < kRows; i++) {
      const typename V::Lanes x = V::all(left.at[i * left.row + p * left.step]);
      low[i] = V::fma(x, a, low[i]);
      high[i] = V::fma(x, b, high[i]);
    }
  }
  for (int i = 0; i < kRows; i++) {
    V::store(c + i * c_row, low[i]);
    V::store(c + i * c_row + V::kLanes, high[i]);
  }
}

template <class V>
INFENG_INLINE void tiles(Left<typename V::Number> left, const typename V::Number* right, int64_t right_row,
                         int64_t count, typename V::Number* c, int64_t c_row, int64_t rows, int64_t columns) {
  for (int64_t j = 0; j < columns; j += 2 * V::kLanes) {
    Left<typename V::Number> part = left;
    typename V::Number* to = c + j;
    int64_t rest = rows;
    for (; rest >= V::kRows; rest -= V::kRows, to += V::kRows * c_row, part.at += V::kRows * left.row) {
      tile<V, V::kRows>(part, right + j, right_row, count, to, c_row);
    }
    for (; rest > 0; rest--, to += c_row, part.at += left.row) tile<V, 1>(part, right + j, right_row, count, to, c_row);
  }
}

void multiply(Left<float> left, const float* right, int64_t right_row, int64_t count, float* c, int64_t c_row,
              int64_t rows, int64_t columns) {
  tiles<Floats>(left, right, right_row, count, c, c_row, rows, columns);
}

void multiply(Left<double> left, const double* right, int64_t right_row, int64_t count, double* c, int64_t c_row,
              int64_t rows, int64_t columns) {
  tiles<Doubles>(left, right, right_row, count, c, c_row, rows, columns);
}
