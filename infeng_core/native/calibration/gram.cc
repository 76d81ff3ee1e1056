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

// Rows of one factor in panels, 0 behind the last column.
class Packed {
 public:
  explicit Packed(int64_t columns)
      : columns(columns), panels((columns + kPanel - 1) / kPanel), values_(size_t(panels * kPanel * kBlock)) {}

  void load(const float* x, int64_t rows, int threads) {
    for_each(panels, threads, [&](int64_t p) {
      const int64_t width = std::min(kPanel, columns - p * kPanel);
      for (int64_t row = 0; row < rows; row++) {
        float* to = values_.data() + (p * kBlock + row) * kPanel;
        std::fill_n(std::copy_n(x + row * columns + p * kPanel, width, to), kPanel - width, 0.0f);
      }
    });
  }

  const float* panel(int64_t p) const { return values_.data() + p * kBlock * kPanel; }

  const int64_t columns, panels;

 private:
  std::vector<float> values_;
};

// Adds the products of panel p on the left with those on the right to h; of a factor with itself above the diagonal.
INFENG_CLONED void add_panel(const Packed& left, const Packed& right, int64_t p, int64_t rows, double* h) {
  const bool is_same = &left == &right;
  for (int64_t q = is_same ? p : 0; q < right.panels; q++) {
    const int64_t columns = std::min(kPanel, right.columns - q * kPanel);
    for (int64_t first = 0; first < kPanel && p * kPanel + first < left.columns; first += kTile) {
      float sums[kTile][kPanel];
      tile(left.panel(p) + first, right.panel(q), rows, sums);
      for (int64_t i = 0; i < kTile && p * kPanel + first + i < left.columns; i++) {
        double* out = h + (p * kPanel + first + i) * right.columns + q * kPanel;
        for (int64_t j = is_same && p == q ? first + i : 0; j < columns; j++) out[j] += double(sums[i][j]);
      }
    }
  }
}

}  // namespace

void add_gram(const float* x, int64_t rows, int64_t k, double* h, int threads) {
  Packed packed(k);
  for (int64_t begin = 0; begin < rows; begin += kBlock) {
    const int64_t count = std::min(kBlock, rows - begin);
    packed.load(x + begin * k, count, threads);
    for_each(packed.panels, threads, [&](int64_t p) { add_panel(packed, packed, p, count, h); });
  }
}

void add_cross(const float* y, int64_t m, const float* x, int64_t rows, int64_t k, double* c, int threads) {
  Packed left(m), right(k);
  for (int64_t begin = 0; begin < rows; begin += kBlock) {
    const int64_t count = std::min(kBlock, rows - begin);
    left.load(y + begin * m, count, threads);
    right.load(x + begin * k, count, threads);
    for_each(left.panels, threads, [&](int64_t p) { add_panel(left, right, p, count, c); });
  }
}

}  // namespace infeng::calibration
