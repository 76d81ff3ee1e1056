#include "calibration/factor.h"

#include <algorithm>
#include <vector>

#include "calibration/threads.h"
#include "clones.h"

namespace infeng::calibration {
namespace {

constexpr int64_t kBlock = 64;
constexpr int64_t kRows = 4;  // of a tile, times two vectors of four columns
typedef double Lanes __attribute__((vector_size(32), aligned(8)));
constexpr int64_t kLanes = 4;
constexpr int64_t kColumns = 2 * kLanes;

// The block on the diagonal, (width, width) of stride k, by columns; returns the first pivot that is not positive.
int64_t factor_diagonal(double* a, int64_t width, int64_t k) {
  for (int64_t j = 0; j < width; j++) {
    double pivot = a[j * k + j];
    for (int64_t p = 0; p < j; p++) pivot -= a[j * k + p] * a[j * k + p] * a[p * k + p];
    if (!(pivot > 0)) return j;
    a[j * k + j] = pivot;
    for (int64_t i = j + 1; i < width; i++) {
      double value = a[i * k + j];
      for (int64_t p = 0; p < j; p++) value -= a[i * k + p] * a[j * k + p] * a[p * k + p];
      a[i * k + j] = value / pivot;
    }
  }
  return -1;
}

// One row below the diagonal block: row becomes L, scaled[] = L D, which the update of what follows multiplies with.
void solve_row(double* row, const double* diagonal, int64_t width, int64_t k, double* scaled) {
  for (int64_t j = 0; j < width; j++) {
    double value = row[j];
    for (int64_t p = 0; p < j; p++) value -= scaled[p] * diagonal[j * k + p];
    scaled[j] = value;
    row[j] = value / diagonal[j * k + j];
  }
}

// c[i][j] -= sum over p of left[i][p] * right[p][j], for 4 rows and 8 columns; what lies above the diagonal too.
INFENG_CLONED void update_tile(const double* const left[kRows], const double* right, int64_t width,
                               double* const c[kRows]) {
  Lanes low[kRows] = {}, high[kRows] = {};
  for (int64_t p = 0; p < width; p++) {
    const Lanes a = *reinterpret_cast<const Lanes*>(right + p * kColumns);
    const Lanes b = *reinterpret_cast<const Lanes*>(right + p * kColumns + kLanes);
    for (int i = 0; i < kRows; i++) {
      low[i] += a * left[i][p];
      high[i] += b * left[i][p];
    }
  }
  for (int i = 0; i < kRows; i++) {
    *reinterpret_cast<Lanes*>(c[i]) -= low[i];
    *reinterpret_cast<Lanes*>(c[i] + kLanes) -= high[i];
  }
}

// Subtracts the block's share from the rows [row, row + 4) of the lower triangle from column `end` on.
void update_rows(double* a, int64_t k, int64_t end, int64_t row, int64_t width, const double* scaled,
                 const double* packed) {
  const int64_t rows = std::min(kRows, k - row);
  const double* left[kRows];
  for (int64_t i = 0; i < kRows; i++) left[i] = scaled + (row - end + std::min(i, rows - 1)) * kBlock;
  for (int64_t column = end; column < row + rows; column += kColumns) {
    double edge[kRows][kColumns] = {};  // past the matrix, or of rows that there are not
    double* c[kRows];
    const int64_t columns = std::min(kColumns, k - column);
    for (int64_t i = 0; i < kRows; i++) {
      c[i] = i < rows && columns == kColumns ? a + (row + i) * k + column : edge[i];
      if (i < rows && c[i] == edge[i]) std::copy_n(a + (row + i) * k + column, columns, edge[i]);
    }
    update_tile(left, packed + (column - end) * kBlock, width, c);
    for (int64_t i = 0; i < rows; i++) {
      if (c[i] == edge[i]) std::copy_n(edge[i], columns, a + (row + i) * k + column);
    }
  }
}

}  // namespace

int64_t factor(double* a, int64_t k, int threads) {
  std::vector<double> scaled(size_t(k * kBlock)), packed(size_t((k + kColumns) * kBlock));
  for (int64_t begin = 0; begin < k; begin += kBlock) {
    const int64_t width = std::min(kBlock, k - begin), end = begin + width, below = k - end;
    double* diagonal = a + begin * k + begin;
    const int64_t failed = factor_diagonal(diagonal, width, k);
    if (failed >= 0) return begin + failed;
    for_each((below + kRows - 1) / kRows, threads, [&](int64_t tile) {
      for (int64_t i = tile * kRows; i < std::min(below, (tile + 1) * kRows); i++) {
        solve_row(a + (end + i) * k + begin, diagonal, width, k, scaled.data() + i * kBlock);
      }
    });
    // L of the block's columns, eight rows side by side.
    for_each((below + kColumns - 1) / kColumns, threads, [&](int64_t tile) {
      double* to = packed.data() + tile * kColumns * kBlock;
      for (int64_t p = 0; p < width; p++) {
        for (int64_t j = 0; j < kColumns; j++) {
          const int64_t row = end + tile * kColumns + j;
          to[p * kColumns + j] = row < k ? a[row * k + begin + p] : 0.0;
        }
      }
    });
    // The longest rows come first, so that threads end together.
    const int64_t tiles = (below + kRows - 1) / kRows;
    for_each(tiles, threads, [&](int64_t i) {
      update_rows(a, k, end, end + (tiles - 1 - i) * kRows, width, scaled.data(), packed.data());
    });
  }
  return -1;
}

}  // namespace infeng::calibration
