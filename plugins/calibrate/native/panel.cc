#include "panel.h"

#include <algorithm>

#include "products.h"
#include "threads.h"

namespace infeng::calibration {
namespace {

constexpr int64_t kChunk = 128;  // inputs whose columns of a part, 16 KiB, stay in the L1 cache
static_assert(kPanelPart % kProductColumns == 0 && kPanelColumns % kPanelPart == 0);

}  // namespace

void Panel::load(const double* h, double damping, int64_t begin, int threads) {
  const int64_t width = std::min(kPanelColumns, k_ - begin);
  for_each((k_ + kChunk - 1) / kChunk, threads, [&](int64_t chunk) {
    for (int64_t p = chunk * kChunk; p < std::min(k_, (chunk + 1) * kChunk); p++) {
      const double* const from = h + p * k_ + begin;
      for (int64_t j = 0; j < kPanelColumns; j++) {
        const double value = j < width ? from[j] + (p == begin + j ? damping : 0.0) : 0.0;
        columns_[size_t((j / kPanelPart * k_ + p) * kPanelPart + j % kPanelPart)] = float(value);
      }
    }
  });
}

void Panel::multiply(const float* rows, int64_t count, float (*made)[kPanelColumns]) const {
  std::fill_n(made[0], count * kPanelColumns, 0.0f);
  for (int64_t begin = 0; begin < k_; begin += kChunk) {
    for (int64_t part = 0; part < kPanelColumns / kPanelPart; part++) {
      add_products({rows + begin, k_, 1}, row(part, begin), kPanelPart, std::min(kChunk, k_ - begin),
                   made[0] + part * kPanelPart, kPanelColumns, count, kPanelPart);
    }
  }
}

}  // namespace infeng::calibration
