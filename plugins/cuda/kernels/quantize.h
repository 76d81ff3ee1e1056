// Parameters of a rounding of rows to int8.
#pragma once

#include <cstdint>

namespace infeng_cuda {

struct Rounding {
  int8_t* q = nullptr;  // null: no rounding
  float* scale = nullptr;
  int32_t* sum = nullptr;
  int64_t q_stride = 0;
  int64_t scale_stride = 0;
  int64_t sum_stride = 0;
  int32_t columns = 0;  // of a row; q is written up to a multiple of 64
  int32_t group = 0;    // 64, 128 or 256 columns with a scale of their own; 0: the whole row
  int32_t block = 0;    // 64, 128 or 256 columns are rotated together; 0: none
};

constexpr int kWarpColumns = 256;    // of a row that a warp rounds at a time
constexpr int kMostHeld = 24 << 10;  // columns of a row that fit in shared memory
constexpr int kMostRoundThreads = 1024;

}  // namespace infeng_cuda
