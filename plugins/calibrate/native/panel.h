// Products of rows with a statistic, 256 of its columns at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace infeng::calibration {

inline constexpr int64_t kPanelColumns = 256;
inline constexpr int64_t kPanelPart = 32;  // columns stored together

// Columns of h + damping I, (k, k) symmetric, in binary32.
class Panel {
 public:
  explicit Panel(int64_t k) : k_(k), columns_(static_cast<size_t>(k * kPanelColumns)) {}

  // Copies the columns from `begin` on; columns after the last one are 0.
  void load(const double* h, double damping, int64_t begin, int threads);

  // made[i][j] = sum over p of rows[i * k + p] * column[begin + j][p], in binary32, by fma, p ascending, for `count`
  // rows; more rows at a time read the columns less often.
  void multiply(const float* rows, int64_t count, float (*made)[kPanelColumns]) const;

  // Row p of the columns of a part.
  const float* row(int64_t part, int64_t p) const { return columns_.data() + (part * k_ + p) * kPanelPart; }

 private:
  int64_t k_;
  std::vector<float> columns_;  // (8, k, 32)
};

}  // namespace infeng::calibration
