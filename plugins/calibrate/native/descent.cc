#include "descent.h"

#include <infeng/extension/clones.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "factor.h"
#include "panel.h"
#include "products.h"
#include "threads.h"

namespace infeng::calibration {
namespace {

constexpr int64_t kRows = 16;             // of a tile
constexpr int64_t kTogether = 4 * kRows;  // rows multiplied with the columns of H while these are in a cache
constexpr int64_t kGroups = kPanelColumns / kSubGroup;
static_assert(kSubGroup == kPanelPart);
constexpr int kChanges[] = {0, -1, 1};
constexpr float kLess = 1 - 0x1p-16f;  // times the present loss: a smaller gain is rounding noise
constexpr float kRound = 0x1.8p23f;    // ties to even for |x| < 2^22, which a clamp before it ensures

typedef float Lanes __attribute__((vector_size(64), aligned(4)));
typedef int32_t Flags __attribute__((vector_size(64), aligned(4)));

// H of one group: L and D of the square on the diagonal, extended by the unit matrix after the last input.
struct Block {
  float l[kSubGroup][kSubGroup];
  float pivot[kSubGroup];

  void load(const double* h, int64_t k, double damping, int64_t begin) {
    double square[kSubGroup * kSubGroup] = {};
    for (int64_t i = 0; i < kSubGroup; i++) {
      const int64_t row = begin + i;
      for (int64_t j = 0; j < i && row < k; j++) square[i * kSubGroup + j] = h[row * k + begin + j];
      square[i * kSubGroup + i] = row < k ? h[row * k + row] + damping : 1.0;
    }
    factor(square, kSubGroup, 1);  // positive definite like h + damping I, which was factored before
    for (int64_t i = 0; i < kSubGroup; i++) {
      for (int64_t j = 0; j < i; j++) l[i][j] = float(square[i * kSubGroup + j]);
      pivot[i] = float(square[i * kSubGroup + i]);
    }
  }
};

// H of consecutive groups: their columns, and the blocks on the diagonal.
struct Span {
  Panel columns;
  std::vector<Block> blocks;
  int64_t first = 0, count = 0;  // groups

  explicit Span(int64_t k) : columns(k), blocks(kGroups) {}

  void load(const double* h, int64_t k, double damping, int64_t begin, int threads) {
    first = begin / kSubGroup;
    count = std::min(kGroups, (k - begin + kSubGroup - 1) / kSubGroup);
    columns.load(h, damping, begin, threads);
    for_each(count, threads, [&](int64_t i) { blocks[size_t(i)].load(h, k, damping, begin + i * kSubGroup); });
  }
};

// One group of 16 rows, each in a lane.
struct alignas(64) Tile {
  float w[kSubGroup][kRows];
  float error[kSubGroup][kRows];     // w less the quantized weight
  float gradient[kSubGroup][kRows];  // H times the errors of whole rows
  float q[kSubGroup][kRows];
  float wanted[kSubGroup][kRows];  // w less the share of the other groups
  float least[kRows];              // the least loss so far
  Flags changed;
};

// A candidate of each row.
struct alignas(64) Candidate {
  float s[kRows], z[kRows];
  float step[kRows], by[kRows];   // d s, 1 / (d s)
  float low[kRows], high[kRows];  // of q
};

// The loss of a group's errors f, up to a constant: sum of pivot * (L'f + y)^2 with y = (L D)^-1 gradient - L'error.
INFENG_CLONED_WIDE void aim(const Block& block, Tile* tile) {
  Lanes* const gradient = reinterpret_cast<Lanes*>(tile->gradient);
  const Lanes* const error = reinterpret_cast<const Lanes*>(tile->error);
  const Lanes* const w = reinterpret_cast<const Lanes*>(tile->w);
  Lanes* const wanted = reinterpret_cast<Lanes*>(tile->wanted);
  Lanes present = {};
  for (int j = 0; j < kSubGroup; j++) {
    for (int p = 0; p < j; p++) gradient[j] -= gradient[p] * block.l[j][p];
  }
  for (int j = 0; j < kSubGroup; j++) {
    const Lanes y = gradient[j] / block.pivot[j];
    present += y * y * block.pivot[j];
    Lanes mixed = error[j];
    for (int i = j + 1; i < kSubGroup; i++) mixed += error[i] * block.l[i][j];
    wanted[j] = w[j] + y - mixed;
  }
  *reinterpret_cast<Lanes*>(tile->least) = present * kLess;
  tile->changed = Flags{};
}

// Chooses codes under the candidate, which replace the best so far in rows where their loss is less.
INFENG_CLONED_WIDE void try_codes(const Block& block, const Candidate& candidate, Tile* tile, Flags* better) {
  const Lanes step = *reinterpret_cast<const Lanes*>(candidate.step),
              by = *reinterpret_cast<const Lanes*>(candidate.by);
  const Lanes low = *reinterpret_cast<const Lanes*>(candidate.low);
  const Lanes high = *reinterpret_cast<const Lanes*>(candidate.high);
  const Lanes* const w = reinterpret_cast<const Lanes*>(tile->w);
  Lanes value[kSubGroup], codes[kSubGroup], errors[kSubGroup], loss = {};
  std::memcpy(value, tile->wanted, sizeof value);
  for (int j = kSubGroup - 1; j >= 0; j--) {
    Lanes q = value[j] * by;
    q = q < high ? q : high;
    q = q > low ? q : low;
    q = (q + kRound) - kRound;
    const Lanes made = step * q, left = value[j] - made, missed = w[j] - made;
    loss += left * left * block.pivot[j];
    codes[j] = q;
    errors[j] = missed;
    for (int to = 0; to < j; to++) value[to] += missed * block.l[j][to];
  }
  Lanes* const least = reinterpret_cast<Lanes*>(tile->least);
  const Flags less = loss < *least;
  *least = less ? loss : *least;
  Lanes* const q = reinterpret_cast<Lanes*>(tile->q);
  Lanes* const error = reinterpret_cast<Lanes*>(tile->error);
  for (int j = 0; j < kSubGroup; j++) {
    q[j] = less ? codes[j] : q[j];
    error[j] = less ? errors[j] : error[j];
  }
  tile->changed |= less;
  *better = less;
}

// One pass over a matrix.
class Pass {
 public:
  Pass(const float* w, int64_t n, int64_t k, SubGrid grid, Integers chosen)
      : w_(w),
        n_(n),
        k_(k),
        groups_((k + kSubGroup - 1) / kSubGroup),
        grid_(grid),
        chosen_(chosen),
        errors_(size_t(n * k)) {}

  void measure(int threads) {
    for_each(n_, threads, [&](int64_t row) {
      for (int64_t i = 0; i < k_; i++) {
        const int64_t at = row * groups_ + i / kSubGroup;
        const float step = chosen_.scales.d[row] * float(chosen_.scales.s[at]);
        errors_[size_t(row * k_ + i)] = w_[row * k_ + i] - step * float(chosen_.q[row * k_ + i]);
      }
    });
  }

  void improve(const Span& span, int threads) {
    for_each((n_ + kTogether - 1) / kTogether, threads, [&](int64_t tile) {
      const int64_t begin = tile * kTogether, rows = std::min(kTogether, n_ - begin);
      float gradients[kTogether][kPanelColumns];
      span.columns.multiply(errors_.data() + begin * k_, rows, gradients);
      for (int64_t n = 0; n < rows; n += kRows) improve_rows(span, begin + n, gradients + n);
    });
  }

 private:
  // Rows after the last one repeat it.
  int64_t row_of(int64_t first, int64_t lane) const { return std::min(first + lane, n_ - 1); }

  // gradients: H times the errors of the rows, updated by each group for the groups after it.
  void improve_rows(const Span& span, int64_t first, float (*gradients)[kPanelColumns]) {
    const int64_t rows = std::min(kRows, n_ - first);
    for (int64_t g = 0; g < span.count; g++) {
      const int64_t group = span.first + g, begin = group * kSubGroup;
      float changes[kRows][kSubGroup];
      improve_group(span.blocks[size_t(g)], group, first, gradients, g * kSubGroup, changes);
      for (int64_t part = g + 1; part < span.count; part++) {
        add_products({changes[0], kSubGroup, 1}, span.columns.row(part, begin), kPanelPart, kSubGroup,
                     gradients[0] + part * kPanelPart, kPanelColumns, rows, kPanelPart);
      }
    }
  }

  // changes: the changes of the group's errors.
  void improve_group(const Block& block, int64_t group, int64_t first, const float (*gradients)[kPanelColumns],
                     int64_t at, float (*changes)[kSubGroup]) {
    Tile tile;
    load(group, first, gradients, at, &tile);
    aim(block, &tile);
    Candidate best;
    for (int64_t n = 0; n < kRows; n++) {
      const int64_t from = row_of(first, n) * groups_ + group;
      best.s[n] = float(chosen_.scales.s[from]);
      best.z[n] = float(chosen_.scales.z[from]);
    }
    const Candidate present = best;
    for (const int scale : kChanges) {
      for (const int zero : kChanges) {
        const Candidate candidate = changed(present, first, scale, zero);
        Flags better;
        try_codes(block, candidate, &tile, &better);
        for (int64_t n = 0; n < kRows; n++) {
          if (!better[n]) continue;
          best.s[n] = candidate.s[n];
          best.z[n] = candidate.z[n];
        }
      }
    }
    store(tile, best, group, first, changes);
  }

  void load(int64_t group, int64_t first, const float (*gradients)[kPanelColumns], int64_t from, Tile* tile) const {
    const int64_t begin = group * kSubGroup, width = std::min<int64_t>(kSubGroup, k_ - begin);
    for (int64_t j = 0; j < kSubGroup; j++) {
      for (int64_t n = 0; n < kRows; n++) {
        const int64_t at = row_of(first, n) * k_ + begin + j;
        tile->w[j][n] = j < width ? w_[at] : 0.0f;
        tile->error[j][n] = j < width ? errors_[size_t(at)] : 0.0f;
        tile->q[j][n] = j < width ? float(chosen_.q[at]) : 0.0f;
        tile->gradient[j][n] = gradients[row_of(first, n) - first][from + j];
      }
    }
  }

  Candidate changed(const Candidate& from, int64_t first, int scale, int zero) const {
    Candidate made;
    for (int64_t n = 0; n < kRows; n++) {
      const int before = int(from.s[n]), s = std::clamp(before + scale, 1, grid_.most_scale());
      const int moved = (2 * int(from.z[n]) * before + s) / (2 * s);  // the nearest, for the offset s z
      const int z = std::clamp(moved + zero, 0, grid_.most_unit());
      const float step = chosen_.scales.d[row_of(first, n)] * float(s);
      made.s[n] = float(s);
      made.z[n] = float(z);
      made.step[n] = step;
      made.by[n] = step == 0.0f ? 0.0f : 1.0f / step;
      made.low[n] = float(std::max(-z, kLowest / s));
      made.high[n] = float(std::min(grid_.most_unit() - z, kHighest / s));
    }
    return made;
  }

  void store(const Tile& tile, const Candidate& best, int64_t group, int64_t first, float (*changes)[kSubGroup]) {
    const int64_t begin = group * kSubGroup, width = std::min<int64_t>(kSubGroup, k_ - begin);
    for (int64_t n = 0; n < std::min(kRows, n_ - first); n++) {
      std::fill_n(changes[n], kSubGroup, 0.0f);
      if (!tile.changed[n]) continue;
      const int64_t row = first + n;
      chosen_.scales.s[row * groups_ + group] = int8_t(best.s[n]);
      chosen_.scales.z[row * groups_ + group] = int8_t(best.z[n]);
      for (int64_t j = 0; j < width; j++) {
        float* const error = errors_.data() + row * k_ + begin + j;
        chosen_.q[row * k_ + begin + j] = int8_t(tile.q[j][n]);
        changes[n][j] = tile.error[j][n] - *error;
        *error = tile.error[j][n];
      }
    }
  }

  const float* w_;
  int64_t n_, k_, groups_;
  SubGrid grid_;
  Integers chosen_;
  std::vector<float> errors_;  // (n, k)
};

}  // namespace

void descend(const float* w, int64_t n, int64_t k, const double* h, double damping, SubGrid grid, Integers chosen,
             int threads) {
  Pass pass(w, n, k, grid, chosen);
  pass.measure(threads);
  Span span(k);
  for (int64_t begin = 0; begin < k; begin += kPanelColumns) {
    span.load(h, k, damping, begin, threads);
    pass.improve(span, threads);
  }
}

}  // namespace infeng::calibration
