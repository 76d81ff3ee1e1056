// rope.
#pragma once

#include "params.h"

namespace infeng_cuda {

constexpr int kRopeWarps = 4;  // of a block; each has a head of a row

// Heads of q or k.
struct RopeHeads {
  float* data = nullptr;
  int64_t stride = 0;  // from row to row
  int64_t head_stride = 0;
  int32_t heads = 0;
  const float* norm = nullptr;   // or null
  const float* scale = nullptr;  // or null: of each position
};

struct Rope {
  RopeHeads q, k;
  const int32_t* positions = nullptr;
  const float* cos = nullptr;
  const float* sin = nullptr;
  int64_t cos_stride = 0;
  int64_t sin_stride = 0;
  int32_t half = 0;  // pairs of a head
  int32_t size = 0;  // of a head
  float eps = 0;
};

}  // namespace infeng_cuda
