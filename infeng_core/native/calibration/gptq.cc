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
constexpr int64_t kTogether = 8 * kRows;  // that read a part of L from the first-level cache
constexpr int64_t kPart = 64;             // rows of L, 32 KiB
typedef double Lanes __attribute__((vector_size(32), aligned(8)));
constexpr int64_t kLanes = 4;
constexpr int64_t kColumns = 2 * kLanes;

// sums[i][j] += sum over p of error[i][p] * l[p][j] for 4 rows; rows of l are kBlock apart.
INFENG_CLONED void feed_back(const double* const error[kRows], const double* l, int64_t count, double (*sums)[kBlock]) {
  for (int64_t column = 0; column < kBlock; column += kColumns) {
    Lanes low[kRows], high[kRows];
    for (int i = 0; i < kRows; i++) {
      low[i] = *reinterpret_cast<const Lanes*>(sums[i] + column);
      high[i] = *reinterpret_cast<const Lanes*>(sums[i] + column + kLanes);
    }
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
    for_each((n + kTogether - 1) / kTogether, threads, [&](int64_t tile) {
      const int64_t first = tile * kTogether, rows = std::min(kTogether, n - first);
      double sums[kTogether][kBlock] = {};
      for (int64_t p = end; p < k; p += kPart) {
        for (int64_t at = 0; at < rows; at += kRows) {
          const double* error[kRows];
          for (int64_t i = 0; i < kRows; i++) error[i] = errors.data() + (first + std::min(at + i, rows - 1)) * k + p;
          feed_back(error, panel.data() + (p - begin) * kBlock, std::min(kPart, k - p), sums + at);
        }
      }
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
