#include "gptq.h"

#include <infeng/extension/clones.h>

#include <algorithm>
#include <vector>

#include "products.h"
#include "threads.h"

namespace infeng::calibration {
namespace {

constexpr int64_t kBlock = 64;       // columns
constexpr int64_t kSlab = 2048;      // rows at a time
constexpr int64_t kRows = 32;        // of a tile
constexpr int64_t kPart = 64;        // columns whose errors, 16 KiB, stay in the first-level cache
constexpr double kRound = 0x1.8p52;  // ties to even for |x| < 2^51, which a clamp before it ensures
static_assert(kRows == kProductColumns);

// One input of the rows of a tile.
struct Column {
  double w[kRows], step[kRows], low[kRows], high[kRows];
};

// code = value / step to the nearest, and its error against w.
INFENG_CLONED_WIDE void round_column(const Column& column, const double* value, double* code, double* missed) {
  for (int64_t r = 0; r < kRows; r++) {
    double q = column.step[r] == 0.0 ? 0.0 : value[r] / column.step[r];
    q = q < column.high[r] ? q : column.high[r];
    q = q > column.low[r] ? q : column.low[r];
    q = (q + kRound) - kRound;
    code[r] = q;
    missed[r] = column.w[r] - column.step[r] * q;
  }
}

// Up to kSlab rows of a matrix, in tiles of 32.
class Rows {
 public:
  Rows(int64_t most, int64_t k, const int32_t* order)
      : k_(k), order_(order), errors_(static_cast<size_t>((most + kRows - 1) / kRows * k * kRows)) {}

  void begin(const float* w, int64_t n, const Steps& steps, int8_t* codes) {
    w_ = w;
    n_ = n;
    steps_ = steps;
    codes_ = codes;
  }

  int64_t tiles() const { return (n_ + kRows - 1) / kRows; }

  // Chooses the codes of the columns [begin, end) of a tile; rows of l, from `begin` on, have kBlock columns.
  void choose(int64_t tile, const double* l, int64_t begin, int64_t end) {
    double* const errors = errors_.data() + tile * k_ * kRows;
    double sums[kBlock][kRows] = {};
    for (int64_t p = end; p < k_; p += kPart) {
      add_products({l + (p - begin) * kBlock, 1, kBlock}, errors + p * kRows, kRows, std::min(kPart, k_ - p), sums[0],
                   kRows, end - begin, kRows);
    }
    for (int64_t j = end - begin - 1; j >= 0; j--) {
      add_products({l + (j + 1) * kBlock + j, 1, kBlock}, errors + (begin + j + 1) * kRows, kRows, end - begin - 1 - j,
                   sums[j], kRows, 1, kRows);
      choose_column(tile, order_[k_ - 1 - (begin + j)], sums[j], errors + (begin + j) * kRows);
    }
  }

 private:
  void choose_column(int64_t tile, int64_t input, const double* passed_on, double* missed) {
    const int64_t first = tile * kRows, rows = std::min(kRows, n_ - first);
    Column column = {};
    double value[kRows] = {}, code[kRows];
    for (int64_t r = 0; r < rows; r++) {
      const int64_t row = first + r, at = row * steps_.groups + input / steps_.group;
      column.w[r] = double(w_[row * k_ + input]);
      column.step[r] = double(steps_.step[at]);
      column.low[r] = steps_.low[at];
      column.high[r] = steps_.high[at];
      value[r] = column.w[r] + passed_on[r];
    }
    round_column(column, value, code, missed);
    for (int64_t r = 0; r < rows; r++) codes_[(first + r) * k_ + input] = int8_t(code[r]);
  }

  const float* w_ = nullptr;
  int64_t n_ = 0, k_;
  const int32_t* order_;
  Steps steps_{};
  int8_t* codes_ = nullptr;
  std::vector<double> errors_;  // (tiles, k, 32); index i belongs to input order[k - 1 - i]
};

// The columns [begin, end) of l from row `begin` on, (k - begin, 64); of the block itself only the part below the
// diagonal.
void load(const double* l, int64_t k, int64_t begin, int64_t end, double* panel, int threads) {
  for_each((k - begin + kPart - 1) / kPart, threads, [&](int64_t part) {
    for (int64_t p = part * kPart; p < std::min(k - begin, (part + 1) * kPart); p++) {
      double* const to = panel + p * kBlock;
      std::fill_n(to, kBlock, 0.0);
      std::copy_n(l + (begin + p) * k + begin, std::min(end - begin, p), to);
    }
  });
}

}  // namespace

void choose_codes(const float* w, int64_t n, int64_t k, const int32_t* order, const double* l, const Steps& steps,
                  int8_t* codes, int threads) {
  Rows rows(std::min(n, kSlab), k, order);
  std::vector<double> panel(size_t(k * kBlock));
  for (int64_t first = 0; first < n; first += kSlab) {
    const int64_t at = first * steps.groups;
    const Steps of_rows{steps.step + at, steps.low + at, steps.high + at, steps.group, steps.groups};
    rows.begin(w + first * k, std::min(kSlab, n - first), of_rows, codes + first * k);
    for (int64_t end = k; end > 0; end = (end - 1) / kBlock * kBlock) {
      const int64_t begin = (end - 1) / kBlock * kBlock;
      load(l, k, begin, end, panel.data(), threads);
      for_each(rows.tiles(), threads, [&](int64_t tile) { rows.choose(tile, panel.data(), begin, end); });
    }
  }
}

}  // namespace infeng::calibration
