// rmsnorm and layernorm.
#pragma once

#include "quantize.h"

namespace infeng_cuda {

constexpr int kMostRoundings = 6;
constexpr int kSumColumns = 256;  // a row in shared memory ends with zeros up to a multiple of so many columns

struct Norm {
  const float* x = nullptr;
  int64_t x_stride = 0;
  int64_t x_head = 0;  // from head to head
  const int32_t* row_index = nullptr;
  const float* weight = nullptr;
  const float* bias = nullptr;
  float* out = nullptr;  // or null
  int64_t out_stride = 0;
  int64_t out_head = 0;
  int32_t heads = 1;
  int32_t k = 0;
  float eps = 0;
  float offset = 0;
  int32_t count = 0;  // of roundings
  Rounding roundings[kMostRoundings];
};

}  // namespace infeng_cuda
