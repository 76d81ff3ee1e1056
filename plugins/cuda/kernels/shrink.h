// shrink, the A half of adapters.
#pragma once

#include "params.h"

namespace infeng_cuda {

// A segment; see infeng_lora_segment.
struct ShrinkPart {
  const uint8_t* a = nullptr;
  const float* scaling = nullptr;
  float weight = 0;
  int32_t row_begin = 0;
  int32_t row_end = 0;
  int32_t rank = 0;
  int32_t u_column = 0;
  int32_t first_block = 0;
};

constexpr int kMostShrinkParts = 64;

struct Shrink {
  Rows8 in;
  Matrix x;  // f32 rows, for A of floats
  Matrix u;
  int64_t panel_bytes = 0;
  int32_t k = 0;
  bool is_row = false;  // the rows of `in` have one scale
  int32_t count = 0;    // of segments
  ShrinkPart parts[kMostShrinkParts];
};

// Blocks of shrink_int8 have 8 outputs of a panel, or all 16 of a folded one.
template <int rows>
constexpr int kShrinkThreads = rows == 1 ? 512 : 256;
constexpr int kShrinkOutputs = 8;

// Blocks over A of floats have a panel: 8 chains of 16 outputs. Shared memory holds stages of 4 KB of A, and their
// inputs.
constexpr int kChains = 8;
constexpr int kChainThreads = kChains * 16;
constexpr int kStageBytes = 4096;
template <class T>
constexpr int kStageInputs = kStageBytes / 16 / static_cast<int>(sizeof(T));
template <class T, int rows>
constexpr int kStageInputBytes = rows * 2 * kStageInputs<T> * 4;  // also those of the second half of a folded panel
template <int rows>
constexpr int kStages = rows == 1 ? 16 : 8;
template <class T, int rows>
constexpr int kShrinkShared = kStages<rows> * (kStageBytes + kStageInputBytes<T, rows>);

}  // namespace infeng_cuda
