#include "calibration/panel.h"

#include <algorithm>

#include "calibration/threads.h"
#include "clones.h"

namespace infeng::calibration {
namespace {

typedef float Lanes __attribute__((vector_size(32), aligned(4)));
constexpr int64_t kLanes = 8;
constexpr int64_t kHalf = 2 * kLanes;

constexpr int64_t kChunk = 256;  // inputs whose columns, 16 KiB, stay in the first-level cache

// made[i][to + j] += sum over the inputs [begin, end) for 4 rows and 16 columns.
INFENG_CLONED void multiply_chunk(const float* const rows[kPanelRows], const float* columns, int64_t begin, int64_t end,
                                  float (*made)[kPanelColumns], int64_t to) {
  Lanes low[kPanelRows], high[kPanelRows];
  for (int64_t i = 0; i < kPanelRows; i++) {
    low[i] = *reinterpret_cast<const Lanes*>(made[i] + to);
    high[i] = *reinterpret_cast<const Lanes*>(made[i] + to + kLanes);
  }
  for (int64_t p = begin; p < end; p++) {
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

void Panel::multiply(const float* const* rows, int64_t count, float (*made)[kPanelColumns]) const {
  for (int64_t i = 0; i < count; i++) std::fill_n(made[i], kPanelColumns, 0.0f);
  for (int64_t half = 0; half < kPanelColumns / kHalf; half++) {
    const float* const columns = columns_.data() + half * k_ * kHalf;
    for (int64_t begin = 0; begin < k_; begin += kChunk) {
      for (int64_t i = 0; i < count; i += kPanelRows) {
        multiply_chunk(rows + i, columns, begin, std::min(k_, begin + kChunk), made + i, half * kHalf);
      }
    }
  }
}

}  // namespace infeng::calibration
