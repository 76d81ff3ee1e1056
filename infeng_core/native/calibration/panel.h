// Products of rows with a statistic, 32 of its columns at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace infeng::calibration {

inline constexpr int64_t kPanelColumns = 32;
inline constexpr int64_t kPanelRows = 4;  // that are multiplied at a time

// Columns of h + damping I, (k, k) symmetric, in binary32.
class Panel {
 public:
  explicit Panel(int64_t k) : k_(k), columns_(static_cast<size_t>(k * kPanelColumns)) {}

  // Takes the columns from `begin` on; those behind the last one are 0.
  void load(const double* h, double damping, int64_t begin, int threads);

  // made[i][j] = sum over p of rows[i][p] * column[begin + j][p], in binary32, p ascending, without contraction, for
  // `count` rows, a multiple of kPanelRows: the more, the less the columns have to be read.
  void multiply(const float* const* rows, int64_t count, float (*made)[kPanelColumns]) const;

 private:
  int64_t k_;
  std::vector<float> columns_;  // (2, k, 16)
};

}  // namespace infeng::calibration
