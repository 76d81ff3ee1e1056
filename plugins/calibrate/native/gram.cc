#include "gram.h"

#include <infeng/extension/clones.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "processor.h"
#include "threads.h"

#if INFENG_X86_PARTS
#include <immintrin.h>
#endif

#pragma GCC diagnostic ignored "-Wpsabi"  // only inlined functions have vectors as arguments

namespace infeng::calibration {
namespace {

constexpr int64_t kBlock = 512;  // rows under one scale of each column
constexpr int64_t kPairs = kBlock / 2;
constexpr int64_t kBlocks = 4;          // blocks summed before their sums go to memory
constexpr int64_t kPanel = 16;          // columns: a block of them is 16 KiB
constexpr int64_t kTile = 4;            // columns of the left factor whose sums are in registers of 32 bytes
constexpr int64_t kGroup = 3;           // panels of the left factor that stay in the second-level cache
constexpr int64_t kSpan = 32;           // panels of the right factor in a task
constexpr int32_t kMost = 2047;         // kMost^2 * kBlock < 2^31
constexpr float kSmallest = 0x1p-100f;  // a column whose largest magnitude lies below counts as zero
constexpr float kRound = 0x1.8p23f;     // ties to even for |x| < 2^22

static_assert(int64_t(kMost) * kMost * kBlock <= std::numeric_limits<int32_t>::max());

// Two rows of a panel: the integers of a column side by side.
using Pairs = int16_t[kPanel][2];
using Sums = int32_t[kPanel][kPanel];
typedef float Lanes __attribute__((vector_size(kPanel * sizeof(float))));
typedef int32_t Integers __attribute__((vector_size(kPanel * sizeof(int32_t))));
static_assert(std::endian::native == std::endian::little);

// sums[i][j] = sum over the rows of left[row][i] * right[row][j].
void tile_anywhere(const Pairs* left, const Pairs* right, int64_t pairs, Sums& sums) {
  for (auto& row : sums) std::fill_n(row, kPanel, 0);
  for (int64_t p = 0; p < pairs; p++) {
    for (int64_t i = 0; i < kPanel; i++) {
      const int32_t even = left[p][i][0], odd = left[p][i][1];
      for (int64_t j = 0; j < kPanel; j++) sums[i][j] += even * right[p][j][0] + odd * right[p][j][1];
    }
  }
}

#if INFENG_X86_PARTS
__attribute__((target("avx2"))) void tile_avx2(const Pairs* left, const Pairs* right, int64_t pairs, Sums& sums) {
  for (int64_t first = 0; first < kPanel; first += kTile) {
    __m256i low[kTile], high[kTile];
    for (int i = 0; i < kTile; i++) low[i] = high[i] = _mm256_setzero_si256();
    for (int64_t p = 0; p < pairs; p++) {
      const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(right[p]));
      const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(right[p] + kPanel / 2));
      for (int i = 0; i < kTile; i++) {
        int32_t both;
        __builtin_memcpy(&both, left[p][first + i], sizeof both);
        const __m256i x = _mm256_set1_epi32(both);
        low[i] = _mm256_add_epi32(low[i], _mm256_madd_epi16(a, x));
        high[i] = _mm256_add_epi32(high[i], _mm256_madd_epi16(b, x));
      }
    }
    for (int i = 0; i < kTile; i++) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(sums[first + i]), low[i]);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(sums[first + i] + kPanel / 2), high[i]);
    }
  }
}

__attribute__((target("avx512f,avx512bw,avx512vnni"))) void tile_vnni(const Pairs* left, const Pairs* right,
                                                                      int64_t pairs, Sums& sums) {
  __m512i made[kPanel];
#pragma GCC unroll 16
  for (int i = 0; i < kPanel; i++) made[i] = _mm512_setzero_si512();
  for (int64_t p = 0; p < pairs; p++) {
    const __m512i a = _mm512_loadu_si512(right[p]);
#pragma GCC unroll 16
    for (int i = 0; i < kPanel; i++) {
      // Not the intrinsic: GCC 12 copies every sum to another register and back.
      asm("vpdpwssd %2%{1to16%}, %1, %0" : "+v"(made[i]) : "v"(a), "m"(left[p][i]));
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kPanel; i++) _mm512_storeu_si512(sums[i], made[i]);
}
#endif

void tile(const Pairs* left, const Pairs* right, int64_t pairs, Sums& sums) {
#if INFENG_X86_PARTS
  if (has_vnni()) return tile_vnni(left, right, pairs, sums);
  if (has_avx2()) return tile_avx2(left, right, pairs, sums);
#endif
  tile_anywhere(left, right, pairs, sums);
}

// A row of a panel; 0 after the last column.
INFENG_INLINE Lanes load(const float* x, int64_t width) {
  Lanes made = {};
  std::memcpy(&made, x, size_t(width) * sizeof(float));
  return made;
}

INFENG_INLINE Integers rounded(const Lanes& x, const Lanes& by) {
  const Lanes q = by == 0.0f ? Lanes{} : (x * by + kRound) - kRound;
  return __builtin_convertvector(q, Integers);
}

// One block of a panel's columns as integers, and their scales; 0 after the last column and row.
INFENG_INLINE void round_columns(const float* x, int64_t rows, int64_t stride, int64_t width, Pairs* out,
                                 double* steps) {
  Lanes most = {}, poison = {};
  for (int64_t row = 0; row < rows; row++) {
    const Lanes value = load(x + row * stride, width), size = value < 0.0f ? -value : value;
    most = size > most ? size : most;
    poison += value * 0.0f;  // NaN if the value is not finite
  }
  const Lanes by = most < kSmallest || poison != 0.0f ? Lanes{} : float(kMost) / most;
  for (int64_t j = 0; j < kPanel; j++) {
    steps[j] = most[j] < kSmallest ? double(poison[j]) : double(most[j]) / kMost + double(poison[j]);
  }
  for (int64_t row = 0; row < rows; row += 2) {
    const Integers even = rounded(load(x + row * stride, width), by);
    const Integers odd = row + 1 < rows ? rounded(load(x + (row + 1) * stride, width), by) : Integers{};
    const Integers both = (even & 0xffff) | (odd << 16);
    std::memcpy(out[row / 2], &both, sizeof both);
  }
}

INFENG_CLONED_WIDE void round_block(const float* x, int64_t rows, int64_t stride, int64_t width, Pairs* out,
                                    double* steps) {
  if (width == kPanel) return round_columns(x, rows, stride, kPanel, out, steps);  // a width that the compiler knows
  round_columns(x, rows, stride, width, out, steps);
}

// Rows of one factor as integers in panels of columns.
class Packed {
 public:
  explicit Packed(int64_t columns)
      : columns(columns),
        panels((columns + kPanel - 1) / kPanel),
        values_(std::make_unique_for_overwrite<Pairs[]>(static_cast<size_t>(panels * kBlocks * kPairs))),
        steps_(static_cast<size_t>(panels * kBlocks * kPanel)) {}

  void load(const float* x, int64_t rows, int threads) {
    for_each(panels, threads, [&](int64_t p) {
      for (int64_t block = 0; block * kBlock < rows; block++) {
        const float* from = x + block * kBlock * columns + p * kPanel;
        const int64_t count = std::min(kBlock, rows - block * kBlock);
        const int64_t width = std::min(kPanel, columns - p * kPanel);
        round_block(from, count, columns, width, values_.get() + at(p, block) * kPairs,
                    steps_.data() + at(p, block) * kPanel);
      }
    });
  }

  const Pairs* values(int64_t p, int64_t block) const { return values_.get() + at(p, block) * kPairs; }
  const double* steps(int64_t p, int64_t block) const { return steps_.data() + at(p, block) * kPanel; }

  const int64_t columns, panels;

 private:
  static int64_t at(int64_t p, int64_t block) { return p * kBlocks + block; }

  std::unique_ptr<Pairs[]> values_;
  std::vector<double> steps_;
};

// made[i][j] += sums[i][j] times the scales of both columns.
INFENG_CLONED_WIDE void widen(const Sums& sums, const double* left, const double* right, double (*made)[kPanel]) {
  for (int64_t i = 0; i < kPanel; i++) {
    for (int64_t j = 0; j < kPanel; j++) made[i][j] += double(sums[i][j]) * (left[i] * right[j]);
  }
}

// Adds the products of panel p on the left with panel q on the right to h; a panel with itself above the diagonal only.
void add_panels(const Packed& left, const Packed& right, int64_t p, int64_t q, int64_t rows, double* h) {
  double made[kPanel][kPanel] = {};
  for (int64_t block = 0; block * kBlock < rows; block++) {
    const int64_t pairs = (std::min(kBlock, rows - block * kBlock) + 1) / 2;
    Sums sums;
    tile(left.values(p, block), right.values(q, block), pairs, sums);
    widen(sums, left.steps(p, block), right.steps(q, block), made);
  }
  const int64_t height = std::min(kPanel, left.columns - p * kPanel),
                width = std::min(kPanel, right.columns - q * kPanel);
  for (int64_t i = 0; i < height; i++) {
    double* out = h + (p * kPanel + i) * right.columns + q * kPanel;
    for (int64_t j = &left == &right && p == q ? i : 0; j < width; j++) out[j] += made[i][j];
  }
}

// Adds left'right to h; a factor with itself above the diagonal only.
void add_products(const Packed& left, const Packed& right, int64_t rows, double* h, int threads) {
  const int64_t groups = (left.panels + kGroup - 1) / kGroup, spans = (right.panels + kSpan - 1) / kSpan;
  for_each(groups * spans, threads, [&](int64_t task) {
    const int64_t begin = task / spans * kGroup, end = std::min(left.panels, begin + kGroup);
    const int64_t from = task % spans * kSpan, to = std::min(right.panels, from + kSpan);
    for (int64_t q = from; q < to; q++) {
      for (int64_t p = begin; p < end; p++) {
        if (&left != &right || p <= q) add_panels(left, right, p, q, rows, h);
      }
    }
  });
}

constexpr int64_t kVisit = kBlocks * kBlock;  // rows

}  // namespace

void add_gram(const float* x, int64_t rows, int64_t k, double* h, int threads) {
  Packed packed(k);
  for (int64_t begin = 0; begin < rows; begin += kVisit) {
    const int64_t count = std::min(kVisit, rows - begin);
    packed.load(x + begin * k, count, threads);
    add_products(packed, packed, count, h, threads);
  }
}

void add_cross(const float* y, int64_t m, const float* x, int64_t rows, int64_t k, double* c, int threads) {
  Packed left(m), right(k);
  for (int64_t begin = 0; begin < rows; begin += kVisit) {
    const int64_t count = std::min(kVisit, rows - begin);
    left.load(y + begin * m, count, threads);
    right.load(x + begin * k, count, threads);
    add_products(left, right, count, c, threads);
  }
}

}  // namespace infeng::calibration
