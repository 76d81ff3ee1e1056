// Linears over float weights, and over integers whose sums are scaled every 32 or 64 inputs.
#pragma once

#include "params.h"

namespace infeng_cuda {

// Blocks of both kinds have 2 panels and a tile of rows; block b has rows b % row_tiles of panels b / row_tiles.
constexpr int kOtherPanels = 2;
constexpr int kOtherStride = kOtherPanels * 16 + 4;  // floats of a row of products

struct LinearFloat {
  Matrix x;
  Panels weight;
  Matrix out;
  int32_t rows = 0;
  int32_t row_tiles = 0;
  int32_t is_aligned = 0;  // whether rows of x lie on multiples of 16 bytes
  Steps steps;
};

// A thread has an output and `rows` rows of the block's tile, which are those of its warp. Inputs and weights come
// through a ring of `stages` in shared memory, of 64 inputs each.
struct FloatShape {
  int rows;
  int stages;
  constexpr int64_t shared(int warps, int inputs_a_word) const {
    return int64_t{4} * stages * 64 * (kOtherPanels * 16 / inputs_a_word + warps * rows);
  }
};
constexpr FloatShape kFloatShapes[] = {{2, 6}, {4, 6}, {8, 3}};
constexpr int kFloatThreads = 256;  // at most

struct LinearGroup {
  Rows8 in;
  Panels weight;
  Matrix out;
  int32_t rows = 0;
  int32_t groups = 0;  // of 64 inputs
  int32_t row_tiles = 0;
  Steps steps;
};

// What a warp of a block of `rows` rows leaves in shared memory of a group of 64 inputs.
template <int sums_of_a_group, int rows>
struct alignas(16) GroupSlot {
  int32_t inputs[rows][20];  // 64 and a gap, so that 8 rows meet all banks
  int32_t sums[sums_of_a_group][kOtherPanels * 16 * rows];
  uint32_t scales[kOtherPanels * 16];
  uint32_t sub_scales[kOtherPanels * 16];
  float row_scales[rows];
  int32_t totals[2][rows];  // sums of the inputs of each half
};

}  // namespace infeng_cuda
