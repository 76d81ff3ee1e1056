#include "products.h"

#include <infeng/extension/clones.h>

#include <cmath>

#include "processor.h"

#if INFENG_X86_PARTS
#include <immintrin.h>
#endif

namespace infeng::calibration {
namespace {

namespace anywhere {
template <class T>
struct Any {
  using Number = T;
  static constexpr int64_t kLanes = 16 / sizeof(T);
  static constexpr int kRows = 4;
  struct Lanes {
    T of[kLanes];
  };
  static INFENG_INLINE Lanes load(const T* from) {
    Lanes made;
    for (int64_t i = 0; i < kLanes; i++) made.of[i] = from[i];
    return made;
  }
  static INFENG_INLINE void store(T* to, const Lanes& from) {
    for (int64_t i = 0; i < kLanes; i++) to[i] = from.of[i];
  }
  static INFENG_INLINE Lanes all(T value) {
    Lanes made;
    for (int64_t i = 0; i < kLanes; i++) made.of[i] = value;
    return made;
  }
  // Without the instruction std::fma calls the C library, which is slow.
  static INFENG_INLINE Lanes fma(const Lanes& a, const Lanes& b, const Lanes& c) {
    Lanes made;
    for (int64_t i = 0; i < kLanes; i++) made.of[i] = std::fma(a.of[i], b.of[i], c.of[i]);
    return made;
  }
};
using Floats = Any<float>;
using Doubles = Any<double>;
#include "products_loop.h"
}  // namespace anywhere

#if INFENG_X86_PARTS
#pragma GCC push_options
#pragma GCC target("avx2,fma")
namespace avx2 {
struct Floats {
  using Number = float;
  using Lanes = __m256;
  static constexpr int64_t kLanes = 8;
  static constexpr int kRows = 4;
  static INFENG_INLINE Lanes load(const float* from) { return _mm256_loadu_ps(from); }
  static INFENG_INLINE void store(float* to, Lanes from) { _mm256_storeu_ps(to, from); }
  static INFENG_INLINE Lanes all(float value) { return _mm256_set1_ps(value); }
  static INFENG_INLINE Lanes fma(Lanes a, Lanes b, Lanes c) { return _mm256_fmadd_ps(a, b, c); }
};
struct Doubles {
  using Number = double;
  using Lanes = __m256d;
  static constexpr int64_t kLanes = 4;
  static constexpr int kRows = 4;
  static INFENG_INLINE Lanes load(const double* from) { return _mm256_loadu_pd(from); }
  static INFENG_INLINE void store(double* to, Lanes from) { _mm256_storeu_pd(to, from); }
  static INFENG_INLINE Lanes all(double value) { return _mm256_set1_pd(value); }
  static INFENG_INLINE Lanes fma(Lanes a, Lanes b, Lanes c) { return _mm256_fmadd_pd(a, b, c); }
};
#include "products_loop.h"
}  // namespace avx2
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx2,fma,avx512f")
namespace avx512 {
struct Floats {
  using Number = float;
  using Lanes = __m512;
  static constexpr int64_t kLanes = 16;
  static constexpr int kRows = 8;
  static INFENG_INLINE Lanes load(const float* from) { return _mm512_loadu_ps(from); }
  static INFENG_INLINE void store(float* to, Lanes from) { _mm512_storeu_ps(to, from); }
  static INFENG_INLINE Lanes all(float value) { return _mm512_set1_ps(value); }
  static INFENG_INLINE Lanes fma(Lanes a, Lanes b, Lanes c) { return _mm512_fmadd_ps(a, b, c); }
};
struct Doubles {
  using Number = double;
  using Lanes = __m512d;
  static constexpr int64_t kLanes = 8;
  static constexpr int kRows = 8;
  static INFENG_INLINE Lanes load(const double* from) { return _mm512_loadu_pd(from); }
  static INFENG_INLINE void store(double* to, Lanes from) { _mm512_storeu_pd(to, from); }
  static INFENG_INLINE Lanes all(double value) { return _mm512_set1_pd(value); }
  static INFENG_INLINE Lanes fma(Lanes a, Lanes b, Lanes c) { return _mm512_fmadd_pd(a, b, c); }
};
#include "products_loop.h"
}  // namespace avx512
#pragma GCC pop_options
#endif

template <class T>
void choose(Left<T> left, const T* right, int64_t right_row, int64_t count, T* c, int64_t c_row, int64_t rows,
            int64_t columns) {
#if INFENG_X86_PARTS
  if (has_avx512()) return avx512::multiply(left, right, right_row, count, c, c_row, rows, columns);
  if (has_avx2()) return avx2::multiply(left, right, right_row, count, c, c_row, rows, columns);
#endif
  anywhere::multiply(left, right, right_row, count, c, c_row, rows, columns);
}

}  // namespace

void add_products(Left<float> left, const float* right, int64_t right_row, int64_t count, float* c, int64_t c_row,
                  int64_t rows, int64_t columns) {
  choose(left, right, right_row, count, c, c_row, rows, columns);
}

void add_products(Left<double> left, const double* right, int64_t right_row, int64_t count, double* c, int64_t c_row,
                  int64_t rows, int64_t columns) {
  choose(left, right, right_row, count, c, c_row, rows, columns);
}

}  // namespace infeng::calibration
