// Steps that a linear did not take along: those of adapters, and the rounding of its result.
#pragma once

#include "params.h"
#include "quantize.h"

namespace infeng_cuda {

// A segment of LORA; see infeng_lora_segment.
struct LoraPart {
  int32_t row_begin = 0;
  int32_t row_end = 0;
  int32_t first = 0;  // no segment before this one covers rows from row_begin on
  int32_t rank = 0;
  uint32_t dtype = 0;
  int32_t u_column = 0;
  int32_t panel_begin = 0;
  int32_t panel_step = 1;
  int32_t panel_count = 0;
  const void* b = nullptr;
  const uint16_t* b_scale = nullptr;
  const float* row_scale = nullptr;
  const float* bias = nullptr;
};

// How a block comes from values to its results.
enum class Way : int32_t {
  write,  // each as it is made; there is no rounding
  hold,   // through shared memory: all are made before any is written, so out may be in even if it is half as wide
  read    // there are no segments and no steps: values are read where they are needed, and no row is too long
};

// First the segments, then the steps; then the result is written and rounded.
template <int most>
struct EpilogueWith {
  static constexpr int kMost = most;
  Matrix in;
  Matrix out;  // or no data
  Steps steps;
  Rounding rounding;
  Way way = Way::write;
  int64_t row0 = 0;     // of the launch
  int32_t columns = 0;  // of the result, whole panels
  int32_t span = 0;     // columns of a block, or of all
  int32_t count = 0;    // of segments, sorted by row_begin
  const float* u = nullptr;
  int64_t u_stride = 0;
  LoraPart parts[most];
};
using EpilogueFew = EpilogueWith<16>;
using EpilogueMany = EpilogueWith<256>;

constexpr uint32_t kF32 = 1, kBf16 = 3, kInt8 = 4;  // of LoraPart::dtype, as in abi.h

}  // namespace infeng_cuda
