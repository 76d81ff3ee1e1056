#include "calibration/gptq.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "calibration/threads.h"
#include "clones.h"

namespace infeng::calibration {
namespace {

constexpr int64_t kBlock = 64;
constexpr int kRows = 4;
typedef double Lanes __attribute__((vector_size(32), aligned(8)));
constexpr int64_t kLanes = 4;
constexpr int64_t kColumns = 2 * kLanes;

// sums[i][j] = sum over p of error[i][p] * l[p][j] for 4 rows and 8 columns; rows of l are kBlock apart.
INFENG_CLONED void feed_back(const double* const error[kRows], const double* l, int64_t count, double (*sums)[kBlock]) {
  for (int64_t column = 0; column < kBlock; column += kColumns) {
    Lanes low[kRows] = {}, high[kRows] = {};
    for (int64_t p = 0; p < count; p++) {
      const Lanes a = *reinterpret_cast<const Lanes*>(l + p * kBlock + column);
      const Lanes b = *reinterpret_cast<const Lanes*>(l + p * kBlock + column + kLanes);
      for (int i = 0; i < kRows; i++) {
        low[i] += a * error[i][p];
        high[i] += b * error[i][p];
      }
    }
    for (int i = 0; i < kRows; i++) {
      *reinterpret_cast<Lanes*>(sums[i] + column) = low[i];
      *reinterpret_cast<Lanes*>(sums[i] + column + kLanes) = high[i];
    }
  }
}

int8_t nearest(double value, float step, int low, int high) {
  if (step == 0) return 0;
  return int8_t(std::clamp(std::nearbyint(value / double(step)), double(low), double(high)));
}

}  // namespace

void choose_codes(const float* w, int64_t n, int64_t k, const int32_t* order, const double* l, const Steps& steps,
                  int8_t* codes, int threads) {
  std::vector<double> errors(size_t(n * k));  // at index i: of input order[k - 1 - i]
  std::vector<double> panel(size_t(k * kBlock));
  for (int64_t end = k; end > 0; end = (end - 1) / kBlock * kBlock) {
    const int64_t begin = (end - 1) / kBlock * kBlock, width = end - begin;
    for_each(k - begin, threads, [&](int64_t p) {
      const int64_t row = begin + p;
      double* to = panel.data() + p * kBlock;
      std::fill_n(to, kBlock, 0.0);
      std::copy_n(l + row * k + begin, std::min(width, row - begin), to);  // of the block itself, below the diagonal
    });
    for_each((n + kRows - 1) / kRows, threads, [&](int64_t tile) {
      const int64_t first = tile * kRows, rows = std::min<int64_t>(kRows, n - first);
      const double* error[kRows];
      for (int64_t i = 0; i < kRows; i++) error[i] = errors.data() + (first + std::min(i, rows - 1)) * k + end;
      double sums[kRows][kBlock];
      feed_back(error, panel.data() + width * kBlock, k - end, sums);
      for (int64_t i = 0; i < rows; i++) {
        const int64_t row = first + i;
        for (int64_t j = width - 1; j >= 0; j--) {
          const int64_t input = order[k - 1 - (begin + j)], at = row * steps.groups + input / steps.group;
          const double value = double(w[row * k + input]) + sums[i][j];
          const int8_t code = nearest(value, steps.step[at], steps.low[at], steps.high[at]);
          codes[row * k + input] = code;
          const double missed = double(w[row * k + input]) - double(steps.step[at]) * code;
          errors[size_t(row * k + begin + j)] = missed;
          const double* below = panel.data() + j * kBlock;
          for (int64_t to = 0; to < j; to++) sums[i][to] += missed * below[to];
        }
      }
    });
  }
}

}  // namespace infeng::calibration
