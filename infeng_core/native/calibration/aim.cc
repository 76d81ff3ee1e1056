#include "calibration/aim.h"

#include <algorithm>
#include <vector>

#include "calibration/panel.h"
#include "calibration/threads.h"
#include "clones.h"

namespace infeng::calibration {
namespace {

constexpr int64_t kRows = 8;   // side by side
constexpr int64_t kSteps = 4;  // of a substitution that are taken together
typedef double Lanes __attribute__((vector_size(32), aligned(8)));
constexpr int64_t kLanes = 4;
constexpr int64_t kParts = kRows / kLanes;

// z = L^-1 z, (k, kRows).
INFENG_CLONED void forward(const double* l, int64_t k, double* z) {
  for (int64_t begin = 0; begin < k; begin += kSteps) {
    const int64_t count = std::min(kSteps, k - begin);
    Lanes sums[kSteps][kParts] = {};
    const double* row[kSteps];
    for (int64_t i = 0; i < kSteps; i++) row[i] = l + (begin + std::min(i, count - 1)) * k;
    for (int64_t p = 0; p < begin; p++) {
      const Lanes* const of = reinterpret_cast<const Lanes*>(z + p * kRows);
      for (int64_t i = 0; i < kSteps; i++) {
        for (int64_t part = 0; part < kParts; part++) sums[i][part] += of[part] * row[i][p];
      }
    }
    for (int64_t i = 0; i < count; i++) {
      Lanes* const to = reinterpret_cast<Lanes*>(z + (begin + i) * kRows);
      for (int64_t p = begin; p < begin + i; p++) {
        const Lanes* const of = reinterpret_cast<const Lanes*>(z + p * kRows);
        for (int64_t part = 0; part < kParts; part++) sums[i][part] += of[part] * row[i][p];
      }
      for (int64_t part = 0; part < kParts; part++) to[part] -= sums[i][part];
    }
  }
}

// z = L'^-1 D^-1 z, (k, kRows).
INFENG_CLONED void backward(const double* l, int64_t k, double* z) {
  for (int64_t i = 0; i < k; i++) {
    Lanes* const at = reinterpret_cast<Lanes*>(z + i * kRows);
    for (int64_t part = 0; part < kParts; part++) at[part] /= l[i * k + i];
  }
  for (int64_t end = k; end > 0; end = (end - 1) / kSteps * kSteps) {
    const int64_t begin = (end - 1) / kSteps * kSteps;
    for (int64_t i = end - 1; i > begin; i--) {
      const Lanes* const of = reinterpret_cast<const Lanes*>(z + i * kRows);
      for (int64_t j = begin; j < i; j++) {
        Lanes* const to = reinterpret_cast<Lanes*>(z + j * kRows);
        for (int64_t part = 0; part < kParts; part++) to[part] -= of[part] * l[i * k + j];
      }
    }
    for (int64_t j = 0; j < begin; j++) {
      Lanes* const to = reinterpret_cast<Lanes*>(z + j * kRows);
      Lanes sums[kParts] = {};
      for (int64_t i = begin; i < end; i++) {
        const Lanes* const of = reinterpret_cast<const Lanes*>(z + i * kRows);
        for (int64_t part = 0; part < kParts; part++) sums[part] += of[part] * l[i * k + j];
      }
      for (int64_t part = 0; part < kParts; part++) to[part] -= sums[part];
    }
  }
}

// gap = w inputs + outputs.
void multiply(const float* w, int64_t n, int64_t k, const Drift& drift, double* gap, int threads) {
  Panel panel(k);
  for (int64_t begin = 0; begin < k; begin += kPanelColumns) {
    panel.load(drift.inputs, 0, begin, threads);
    for_each((n + kPanelRows - 1) / kPanelRows, threads, [&](int64_t tile) {
      const int64_t first = tile * kPanelRows, rows = std::min(kPanelRows, n - first);
      const float* of[kPanelRows];
      for (int64_t i = 0; i < kPanelRows; i++) of[i] = w + (first + std::min(i, rows - 1)) * k;
      float made[kPanelRows][kPanelColumns];
      panel.multiply(of, made);
      for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < std::min(kPanelColumns, k - begin); j++) {
          const int64_t at = (first + i) * k + begin + j;
          gap[at] = double(made[i][j]) + (drift.outputs == nullptr ? 0.0 : drift.outputs[at]);
        }
      }
    });
  }
}

}  // namespace

void aim(const float* w, int64_t n, int64_t k, const Drift& drift, const int32_t* order, const double* l, float* aimed,
         int threads) {
  std::vector<double> gap(static_cast<size_t>(n * k));
  multiply(w, n, k, drift, gap.data(), threads);
  for_each((n + kRows - 1) / kRows, threads, [&](int64_t tile) {
    const int64_t first = tile * kRows, rows = std::min(kRows, n - first);
    std::vector<double> z(static_cast<size_t>(k * kRows));
    for (int64_t i = 0; i < k; i++) {
      for (int64_t r = 0; r < rows; r++) z[size_t(i * kRows + r)] = gap[size_t((first + r) * k + order[k - 1 - i])];
    }
    forward(l, k, z.data());
    backward(l, k, z.data());
    for (int64_t i = 0; i < k; i++) {
      for (int64_t r = 0; r < rows; r++) {
        const int64_t at = (first + r) * k + order[k - 1 - i];
        aimed[at] = float(double(w[at]) + z[size_t(i * kRows + r)]);
      }
    }
  });
}

}  // namespace infeng::calibration
