#include "factor.h"

#include <algorithm>
#include <vector>

#include "products.h"
#include "threads.h"

namespace infeng::calibration {
namespace {

constexpr int64_t kBlock = 64;
constexpr int64_t kRows = 8;  // of a tile
constexpr int64_t kColumns = kProductColumns;

// Factors the block on the diagonal, (width, width) of stride k, by columns; returns the first non-positive pivot.
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

// One row below the diagonal block: row becomes L, and minus[] = -L D is a factor of the update after it.
void solve_row(double* row, const double* diagonal, int64_t width, int64_t k, double* minus) {
  for (int64_t j = 0; j < width; j++) {
    double value = row[j];
    for (int64_t p = 0; p < j; p++) value += minus[p] * diagonal[j * k + p];
    minus[j] = -value;
    row[j] = value / diagonal[j * k + j];
  }
}

// Subtracts the block's share from the rows [row, row + 8) of the lower triangle from column `end` on; values above the
// diagonal change too.
void update_rows(double* a, int64_t k, int64_t end, int64_t row, int64_t width, const double* minus,
                 const double* packed) {
  const int64_t rows = std::min(kRows, k - row);
  const Left<double> left{minus + (row - end) * kBlock, kBlock, 1};
  for (int64_t column = end; column < row + rows; column += kColumns) {
    const double* const right = packed + (column - end) * kBlock;
    double* const c = a + row * k + column;
    if (column + kColumns <= k) {
      add_products(left, right, kColumns, width, c, k, rows, kColumns);
      continue;
    }
    double edge[kRows][kColumns] = {};
    for (int64_t i = 0; i < rows; i++) std::copy_n(c + i * k, k - column, edge[i]);
    add_products(left, right, kColumns, width, edge[0], kColumns, rows, kColumns);
    for (int64_t i = 0; i < rows; i++) std::copy_n(edge[i], k - column, c + i * k);
  }
}

}  // namespace

int64_t factor(double* a, int64_t k, int threads) {
  std::vector<double> minus(size_t(k * kBlock)), packed(size_t((k + kColumns) * kBlock));
  for (int64_t begin = 0; begin < k; begin += kBlock) {
    const int64_t width = std::min(kBlock, k - begin), end = begin + width, below = k - end;
    double* diagonal = a + begin * k + begin;
    const int64_t failed = factor_diagonal(diagonal, width, k);
    if (failed >= 0) return begin + failed;
    for_each((below + kRows - 1) / kRows, threads, [&](int64_t tile) {
      for (int64_t i = tile * kRows; i < std::min(below, (tile + 1) * kRows); i++) {
        solve_row(a + (end + i) * k + begin, diagonal, width, k, minus.data() + i * kBlock);
      }
    });
    // L of the block's columns, in tiles of 32 rows.
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
      update_rows(a, k, end, end + (tiles - 1 - i) * kRows, width, minus.data(), packed.data());
    });
  }
  return -1;
}

}  // namespace infeng::calibration
