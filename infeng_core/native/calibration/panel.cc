#include "calibration/panel.h"

#include <algorithm>

#include "calibration/threads.h"
#include "clones.h"

namespace infeng::calibration {
namespace {

typedef float Lanes __attribute__((vector_size(32), aligned(4)));
constexpr int64_t kLanes = 8;
constexpr int64_t kHalf = 2 * kLanes;

INFENG_CLONED void multiply_half(const float* const rows[kPanelRows], const float* columns, int64_t k,
                                 float (*made)[kPanelColumns], int64_t to) {
  Lanes low[kPanelRows] = {}, high[kPanelRows] = {};
  for (int64_t p = 0; p < k; p++) {
    const Lanes a = *reinterpret_cast<const Lanes*>(columns + p * kHalf);
    const Lanes b = *reinterpret_cast<const Lanes*>(columns + p * kHalf + kLanes);
    for (int64_t i = 0; i < kPanelRows; i++) {
      low[i] += a * rows[i][p];
      high[i] += b * rows[i][p];
    }
  }
  for (int64_t i = 0; i < kPanelRows; i++) {
    *reinterpret_cast<Lanes*>(made[i] + to) = low[i];
    *reinterpret_cast<Lanes*>(made[i] + to + kLanes) = high[i];
  }
}

}  // namespace

void Panel::load(const double* h, double damping, int64_t begin, int threads) {
  const int64_t width = std::min(kPanelColumns, k_ - begin);
  for_each((k_ + kPanelColumns - 1) / kPanelColumns, threads, [&](int64_t part) {
    for (int64_t p = part * kPanelColumns; p < std::min(k_, (part + 1) * kPanelColumns); p++) {
      for (int64_t j = 0; j < kPanelColumns; j++) {
        const double value = j < width ? h[p * k_ + begin + j] + (p == begin + j ? damping : 0.0) : 0.0;
        columns_[size_t((j / kHalf * k_ + p) * kHalf + j % kHalf)] = float(value);
      }
    }
  });
}

void Panel::multiply(const float* const rows[kPanelRows], float (*made)[kPanelColumns]) const {
  for (int64_t half = 0; half < kPanelColumns / kHalf; half++) {
    multiply_half(rows, columns_.data() + half * k_ * kHalf, k_, made, half * kHalf);
  }
}

}  // namespace infeng::calibration
