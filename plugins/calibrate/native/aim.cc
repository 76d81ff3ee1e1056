#include "aim.h"

#include <infeng/extension/clones.h>

#include <algorithm>
#include <vector>

#include "panel.h"
#include "products.h"
#include "threads.h"

namespace infeng::calibration {
namespace {

constexpr int64_t kRows = 32;      // of a tile
constexpr int64_t kBlock = 64;     // columns
constexpr int64_t kSlab = 2048;    // rows at a time
constexpr int64_t kTogether = 64;  // rows that are multiplied with columns of the drift while these are in a cache
static_assert(kRows == kProductColumns && kSlab % kTogether == 0 && kTogether % kRows == 0);

// The factors by which a block of 64 columns changes other steps, (steps, 64): -L or -L'.
class Factors {
 public:
  explicit Factors(int64_t k) : values_(static_cast<size_t>(k * kBlock)) {}

  // Fills steps [first, first + count) from element(step, column).
  template <class Element>
  void load(int64_t first, int64_t count, int64_t width, int threads, Element element) {
    for_each((count + kBlock - 1) / kBlock, threads, [&](int64_t part) {
      for (int64_t step = part * kBlock; step < std::min(count, (part + 1) * kBlock); step++) {
        for (int64_t p = 0; p < width; p++) values_[size_t(step * kBlock + p)] = -element(first + step, p);
      }
    });
  }

  Left<double> all() const { return {values_.data(), kBlock, 1}; }

 private:
  std::vector<double> values_;
};

// z = L^-1 z and z = L'^-1 z within the block on the diagonal, given -L and -L' of it, (64, 64).
void solve_forward(const double* minus, int64_t width, double* z) {
  for (int64_t i = 1; i < width; i++) {
    add_products({minus + i * kBlock, 0, 1}, z, kRows, i, z + i * kRows, kRows, 1, kRows);
  }
}

void solve_backward(const double* minus, int64_t width, double* z) {
  for (int64_t j = width - 2; j >= 0; j--) {
    add_products({minus + j * kBlock + j + 1, 0, 1}, z + (j + 1) * kRows, kRows, width - 1 - j, z + j * kRows, kRows, 1,
                 kRows);
  }
}

INFENG_CLONED_WIDE void divide(double* z, double by) {
  for (int64_t r = 0; r < kRows; r++) z[r] /= by;
}

// Up to kSlab rows of a matrix in tiles of 32, with columns in the order of a substitution.
class Solution {
 public:
  explicit Solution(int64_t most, int64_t k)
      : k_(k), values_(static_cast<size_t>((most + kRows - 1) / kRows * k * kRows)), factors_(k), inner_(kBlock) {}

  void begin(int64_t rows) { tiles_ = (rows + kRows - 1) / kRows; }

  double& at(int64_t row, int64_t step) { return tile(row / kRows)[step * kRows + row % kRows]; }

  void forward(const double* l, int threads) {
    for (int64_t begin = 0; begin < k_; begin += kBlock) {
      const int64_t width = std::min(kBlock, k_ - begin), end = begin + width;
      const auto element = [&](int64_t i, int64_t p) { return l[i * k_ + begin + p]; };
      inner_.load(begin, width, width, 1, element);
      factors_.load(end, k_ - end, width, threads, element);
      for_each(tiles_, threads, [&](int64_t t) {
        double* const z = tile(t);
        solve_forward(inner_.all().at, width, z + begin * kRows);
        add_products(factors_.all(), z + begin * kRows, kRows, width, z + end * kRows, kRows, k_ - end, kRows);
      });
    }
  }

  void backward(const double* l, int threads) {
    for (int64_t end = k_; end > 0; end = (end - 1) / kBlock * kBlock) {
      const int64_t begin = (end - 1) / kBlock * kBlock, width = end - begin;
      const auto element = [&](int64_t j, int64_t p) { return l[(begin + p) * k_ + j]; };
      inner_.load(begin, width, width, 1, element);
      factors_.load(0, begin, width, threads, element);
      for_each(tiles_, threads, [&](int64_t t) {
        double* const z = tile(t);
        solve_backward(inner_.all().at, width, z + begin * kRows);
        add_products(factors_.all(), z + begin * kRows, kRows, width, z, kRows, begin, kRows);
      });
    }
  }

  void divide(const double* l, int threads) {
    for_each(tiles_, threads, [&](int64_t t) {
      for (int64_t i = 0; i < k_; i++) calibration::divide(tile(t) + i * kRows, l[i * k_ + i]);
    });
  }

 private:
  double* tile(int64_t t) { return values_.data() + t * k_ * kRows; }

  int64_t k_, tiles_ = 0;
  std::vector<double> values_;
  Factors factors_, inner_;
};

// gap = w drift of up to kSlab rows; steps[j] is the position of input j in a substitution.
void multiply(const float* w, int64_t n, int64_t k, const double* drift, const std::vector<int64_t>& steps,
              Panel* panel, Solution* gap, int threads) {
  for (int64_t begin = 0; begin < k; begin += kPanelColumns) {
    panel->load(drift, 0, begin, threads);
    for_each((n + kTogether - 1) / kTogether, threads, [&](int64_t tile) {
      const int64_t first = tile * kTogether, rows = std::min(kTogether, n - first);
      float made[kTogether][kPanelColumns];
      panel->multiply(w + first * k, rows, made);
      for (int64_t j = 0; j < std::min(kPanelColumns, k - begin); j++) {
        for (int64_t i = 0; i < rows; i++) gap->at(first + i, steps[size_t(begin + j)]) = double(made[i][j]);
      }
    });
  }
}

}  // namespace

void aim(const float* w, int64_t n, int64_t k, const double* drift, const int32_t* order, const double* l, float* aimed,
         int threads) {
  std::vector<int64_t> steps(static_cast<size_t>(k));
  for (int64_t i = 0; i < k; i++) steps[size_t(order[k - 1 - i])] = i;
  Panel panel(k);
  Solution z(std::min(n, kSlab), k);
  for (int64_t first = 0; first < n; first += kSlab) {
    const int64_t rows = std::min(kSlab, n - first);
    const float* const from = w + first * k;
    z.begin(rows);
    multiply(from, rows, k, drift, steps, &panel, &z, threads);
    z.forward(l, threads);
    z.divide(l, threads);
    z.backward(l, threads);
    for_each(rows, threads, [&](int64_t row) {
      float* const to = aimed + (first + row) * k;
      for (int64_t j = 0; j < k; j++) to[j] = float(double(from[row * k + j]) + z.at(row, steps[size_t(j)]));
    });
  }
}

}  // namespace infeng::calibration
