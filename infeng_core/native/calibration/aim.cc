#include "calibration/aim.h"

#include <algorithm>
#include <vector>

#include "calibration/panel.h"
#include "calibration/threads.h"
#include "clones.h"

namespace infeng::calibration {
namespace {

constexpr int64_t kRows = 32;   // side by side
constexpr int64_t kBlock = 64;  // columns
constexpr int64_t kSteps = 4;   // of a substitution whose sums are in registers, for two vectors of rows
typedef double Lanes __attribute__((vector_size(32), aligned(8)));
constexpr int64_t kLanes = 4;
constexpr int64_t kParts = kRows / kLanes;

// What a block of 64 columns takes away from others: [step / 4][column of the block][step % 4] of L or of L'.
class Factors {
 public:
  explicit Factors(int64_t k) : values_(static_cast<size_t>((k + kSteps) * kBlock)) {}

  // Of steps [first, first + count), element(step, column).
  template <class Element>
  void load(int64_t first, int64_t count, int64_t width, int threads, Element element) {
    for_each((count + kBlock - 1) / kBlock, threads, [&](int64_t part) {
      for (int64_t step = part * kBlock; step < std::min(count, (part + 1) * kBlock); step++) {
        double* const to = values_.data() + step / kSteps * kSteps * kBlock + step % kSteps;
        for (int64_t p = 0; p < width; p++) to[p * kSteps] = element(first + step, p);
      }
    });
  }

  const double* of(int64_t step) const { return values_.data() + step * kBlock; }

 private:
  std::vector<double> values_;
};

// to[s] -= sum over p of factors[p][s] * from[p], for up to 4 steps of 32 rows.
INFENG_CLONED void subtract(const double* factors, const double* from, int64_t width, double* to, int64_t steps) {
  for (int64_t chunk = 0; chunk < kRows; chunk += 2 * kLanes) {
    Lanes low[kSteps] = {}, high[kSteps] = {};
    for (int64_t p = 0; p < width; p++) {
      const Lanes a = *reinterpret_cast<const Lanes*>(from + p * kRows + chunk);
      const Lanes b = *reinterpret_cast<const Lanes*>(from + p * kRows + chunk + kLanes);
      for (int64_t s = 0; s < kSteps; s++) {
        low[s] += a * factors[p * kSteps + s];
        high[s] += b * factors[p * kSteps + s];
      }
    }
    for (int64_t s = 0; s < steps; s++) {
      *reinterpret_cast<Lanes*>(to + s * kRows + chunk) -= low[s];
      *reinterpret_cast<Lanes*>(to + s * kRows + chunk + kLanes) -= high[s];
    }
  }
}

// to -= sum over p of factors[p * stride] * from[p], 32 rows.
INFENG_INLINE void subtract_one(const double* factors, int64_t stride, const double* from, int64_t count, double* to) {
  Lanes sums[kParts] = {};
  for (int64_t p = 0; p < count; p++) {
    const Lanes* const of = reinterpret_cast<const Lanes*>(from + p * kRows);
    for (int64_t part = 0; part < kParts; part++) sums[part] += of[part] * factors[p * stride];
  }
  for (int64_t part = 0; part < kParts; part++) *(reinterpret_cast<Lanes*>(to) + part) -= sums[part];
}

// z = L^-1 z and z = L'^-1 z within the block on the diagonal, (width, width) of stride k.
INFENG_CLONED void solve_forward(const double* l, int64_t width, int64_t k, double* z) {
  for (int64_t i = 1; i < width; i++) subtract_one(l + i * k, 1, z, i, z + i * kRows);
}

INFENG_CLONED void solve_backward(const double* l, int64_t width, int64_t k, double* z) {
  for (int64_t j = width - 2; j >= 0; j--) {
    subtract_one(l + (j + 1) * k + j, k, z + (j + 1) * kRows, width - 1 - j, z + j * kRows);
  }
}

// Rows of a matrix, 32 side by side and their columns in the order of a substitution.
class Solution {
 public:
  Solution(int64_t n, int64_t k)
      : k_(k), tiles_((n + kRows - 1) / kRows), values_(static_cast<size_t>(tiles_ * k * kRows)), factors_(k) {}

  double& at(int64_t row, int64_t step) { return tile(row / kRows)[step * kRows + row % kRows]; }

  void forward(const double* l, int threads) {
    for (int64_t begin = 0; begin < k_; begin += kBlock) {
      const int64_t width = std::min(kBlock, k_ - begin), end = begin + width;
      factors_.load(end, k_ - end, width, threads, [&](int64_t i, int64_t p) { return l[i * k_ + begin + p]; });
      for_each(tiles_, threads, [&](int64_t t) {
        double* const z = tile(t);
        solve_forward(l + begin * k_ + begin, width, k_, z + begin * kRows);
        take_away(z, begin, width, end, k_);
      });
    }
  }

  void backward(const double* l, int threads) {
    for (int64_t end = k_; end > 0; end = (end - 1) / kBlock * kBlock) {
      const int64_t begin = (end - 1) / kBlock * kBlock, width = end - begin;
      factors_.load(0, begin, width, threads, [&](int64_t j, int64_t p) { return l[(begin + p) * k_ + j]; });
      for_each(tiles_, threads, [&](int64_t t) {
        double* const z = tile(t);
        solve_backward(l + begin * k_ + begin, width, k_, z + begin * kRows);
        take_away(z, begin, width, 0, begin);
      });
    }
  }

  void divide(const double* l, int threads) {
    for_each(tiles_, threads, [&](int64_t t) {
      for (int64_t i = 0; i < k_; i++) {
        for (int64_t r = 0; r < kRows; r++) tile(t)[i * kRows + r] /= l[i * k_ + i];
      }
    });
  }

 private:
  double* tile(int64_t t) { return values_.data() + t * k_ * kRows; }

  // The share of the block from `begin` on in the steps [first, last).
  void take_away(double* z, int64_t begin, int64_t width, int64_t first, int64_t last) const {
    for (int64_t i = first; i < last; i += kSteps) {
      subtract(factors_.of(i - first), z + begin * kRows, width, z + i * kRows, std::min(kSteps, last - i));
    }
  }

  int64_t k_, tiles_;
  std::vector<double> values_;
  Factors factors_;
};

// gap = w drift; steps[j] is where input j stands in a substitution.
void multiply(const float* w, int64_t n, int64_t k, const double* drift, const std::vector<int64_t>& steps,
              Solution* gap, int threads) {
  constexpr int64_t kTogether = 8 * kPanelRows;
  Panel panel(k);
  for (int64_t begin = 0; begin < k; begin += kPanelColumns) {
    panel.load(drift, 0, begin, threads);
    for_each((n + kTogether - 1) / kTogether, threads, [&](int64_t tile) {
      const int64_t first = tile * kTogether, rows = std::min(kTogether, n - first);
      const float* of[kTogether];
      for (int64_t i = 0; i < kTogether; i++) of[i] = w + (first + std::min(i, rows - 1)) * k;
      float made[kTogether][kPanelColumns];
      panel.multiply(of, kTogether, made);
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
  Solution z(n, k);
  multiply(w, n, k, drift, steps, &z, threads);
  z.forward(l, threads);
  z.divide(l, threads);
  z.backward(l, threads);
  for_each(n, threads, [&](int64_t row) {
    for (int64_t j = 0; j < k; j++) aimed[row * k + j] = float(double(w[row * k + j]) + z.at(row, steps[size_t(j)]));
  });
}

}  // namespace infeng::calibration
