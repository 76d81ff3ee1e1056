// Linears over int4-p32, int5-p32, int6-p32 and int8-row weights, whose integer sums need no scale inside of a group of
// the activation.
#pragma once

#include "params.h"

namespace infeng_cuda {

struct LinearInt {
  Rows8 in;
  Panels weight;
  Matrix out;
  int32_t rows = 0;
  int32_t groups = 0;     // of 64 inputs
  int32_t wide = 0;       // groups of 64 that share a scale of the activation: 1, 2 or 4; 0: the whole row
  int32_t row_tiles = 0;  // blocks of all rows; block b has rows b % row_tiles of panels b / row_tiles
  Steps steps;
};

// A block of a kernel for few rows has 2 panels and 8, 16 or 32 rows; its 8, 12 or 16 warps share the inputs. Each warp
// leaves its sums in shared memory: at the end, or those of two groups at a time. Behind them are the products.
constexpr int kFewPanels = 2;
constexpr int kFewStride = kFewPanels * 16 + 4;  // floats of a row of products
constexpr int few_shared(int rows, int warps, bool whole) {
  return rows * (kFewPanels * 16 * warps * (whole ? 1 : 2) + kFewStride) * 4;
}

// A block of a kernel for many rows has 8 panels and 128 or 64 rows. Shared memory holds 3 stages of 128 inputs of its
// rows and 2 of its weights, and at the end the products.
constexpr int kManyPanels = 8;
constexpr int kManyStride = kManyPanels * 16 + 4;  // floats of a row of products
constexpr int many_shared(int rows) { return 128 * (3 * rows + 2 * kManyPanels * 16); }
static_assert(many_shared(128) >= 128 * kManyStride * 4 && many_shared(64) >= 64 * kManyStride * 4);

}  // namespace infeng_cuda
