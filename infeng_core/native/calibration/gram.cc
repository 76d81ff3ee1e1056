#include "calibration/gram.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "calibration/threads.h"
#include "clones.h"

namespace infeng::calibration {
namespace {

constexpr int64_t kBlock = 256;  // rows: a panel of them is 16 KiB
constexpr int64_t kPanel = 16;   // columns
constexpr int kTile = 4;         // columns of the left factor whose sums are in registers

typedef float Lanes __attribute__((vector_size(32), aligned(4)));
constexpr int kLanes = 8;

// sums[i][j] = sum over the rows of left[row][i] * right[row][j] for 4 columns and 16.
INFENG_INLINE void tile(const float* left, const float* right, int64_t rows, float sums[kTile][kPanel]) {
  Lanes low[kTile] = {}, high[kTile] = {};
  for (int64_t row = 0; row < rows; row++) {
    const Lanes a = *reinterpret_cast<const Lanes*>(right + row * kPanel);
    const Lanes b = *reinterpret_cast<const Lanes*>(right + row * kPanel + kLanes);
    for (int i = 0; i < kTile; i++) {
      const float x = left[row * kPanel + i];
      low[i] += a * x;
      high[i] += b * x;
    }
  }
  for (int i = 0; i < kTile; i++) {
    std::memcpy(sums[i], &low[i], sizeof low[i]);
    std::memcpy(sums[i] + kLanes, &high[i], sizeof high[i]);
  }
}

// Adds the products of panel p with every panel from p on to h.
INFENG_CLONED void add_panel(const float* packed, int64_t p, int64_t rows, int64_t k, double* h) {
  const int64_t panels = (k + kPanel - 1) / kPanel;
  for (int64_t q = p; q < panels; q++) {
    const int64_t columns = std::min(kPanel, k - q * kPanel);
    for (int64_t first = 0; first < kPanel && p * kPanel + first < k; first += kTile) {
      float sums[kTile][kPanel];
      tile(packed + p * kBlock * kPanel + first, packed + q * kBlock * kPanel, rows, sums);
      for (int64_t i = 0; i < kTile && p * kPanel + first + i < k; i++) {
        double* out = h + (p * kPanel + first + i) * k + q * kPanel;
        for (int64_t j = p == q ? first + i : 0; j < columns; j++) out[j] += double(sums[i][j]);
      }
    }
  }
}

}  // namespace

void add_gram(const float* x, int64_t rows, int64_t k, double* h, int threads) {
  const int64_t panels = (k + kPanel - 1) / kPanel;
  std::vector<float> packed(size_t(panels * kPanel * kBlock));
  for (int64_t begin = 0; begin < rows; begin += kBlock) {
    const int64_t count = std::min(kBlock, rows - begin);
    for_each(panels, threads, [&](int64_t p) {
      const int64_t columns = std::min(kPanel, k - p * kPanel);
      for (int64_t row = 0; row < count; row++) {
        float* to = packed.data() + (p * kBlock + row) * kPanel;
        std::fill_n(std::copy_n(x + (begin + row) * k + p * kPanel, columns, to), kPanel - columns, 0.0f);
      }
    });
    for_each(panels, threads, [&](int64_t p) { add_panel(packed.data(), p, count, k, h); });
  }
}

}  // namespace infeng::calibration
