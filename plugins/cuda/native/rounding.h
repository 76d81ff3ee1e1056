// Steps that round rows, as parameters of a launch.
#pragma once

#include <algorithm>

#include "../kernels/quantize.h"
#include "flatten.h"

namespace infeng_cuda {

// Of a result of `columns`, with its last panel. A step that rounds a whole row takes `row_columns`, without padding.
inline Rounding rounding_of(const infeng_epilogue& step, int64_t columns, int64_t row_columns) {
  const infeng_activation& act = *reinterpret_cast<const infeng_quantize_epilogue&>(step).act;
  const Rows8 rows = rows8_of(act);
  const bool is_row = step.function == INFENG_FUNCTION_ROW;
  Rounding to;
  to.q = const_cast<int8_t*>(rows.q);
  to.scale = const_cast<float*>(rows.scale);
  to.sum = const_cast<int32_t*>(rows.sum);
  to.q_stride = rows.q_stride;
  to.scale_stride = rows.scale_stride;
  to.sum_stride = rows.sum_stride;
  to.columns = static_cast<int32_t>(is_row ? row_columns : columns);
  to.group = is_row ? 0 : static_cast<int32_t>(act.group);
  to.block = act.rotated == 0 ? 0 : is_row ? static_cast<int32_t>(act.rotated) : 64;
  return to;
}

// Threads that round a row of `columns`: warps of 256 columns, at most 1024 threads.
inline unsigned round_threads(int64_t columns) {
  return static_cast<unsigned>(std::min<int64_t>(32 * ceil_div(columns, kWarpColumns), kMostRoundThreads));
}

constexpr uint64_t kHandlesRoundings = function_bit(INFENG_FUNCTION_WIDE) | function_bit(INFENG_FUNCTION_ROW);

}  // namespace infeng_cuda
