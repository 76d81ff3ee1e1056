#include "codes.h"

#include <infeng/extension/half.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "error.h"

namespace infeng {
namespace {

// The scales of 64 inputs.
struct Span {
  int count;
  int64_t first;
};
Span scales_of(const CodeGrid& grid, int64_t g) {
  if (grid.group == 0) return {1, 0};
  const int count = int(kGroup / grid.group);
  return {count, g * count};
}

void require_code(const CodeGrid& grid, int code, int64_t row, int64_t column) {
  if (code < grid.low || code > grid.high) {
    fail("out_of_range", "row ", row, ", column ", column, ": code ", code, " is outside of ", grid.low, " to ",
         grid.high);
  }
}

void require_finite(float scale, int64_t row, int64_t column) {
  if (std::isfinite(scale)) return;
  fail("not_finite", "row ", row, ", columns from ", column, ": the scale is ", scale);
}

void load_lane(const CodeGrid& grid, const Codes& codes, int64_t row, int lane, int64_t g, Integers q, Scales scale) {
  const int64_t begin = g * kGroup, end = std::min<int64_t>(begin + kGroup, codes.k), groups = grid.groups(codes.k);
  for (int64_t k = begin; k < end; k++) {
    const int8_t code = codes.q[row * codes.k + k];
    require_code(grid, code, row, k);
    q[k - begin][lane] = code;
  }
  const Span span = scales_of(grid, g);
  for (int h = 0; h < span.count && span.first + h < groups; h++) {
    scale[h][lane] = codes.scale[row * groups + span.first + h];
    (grid.half ? require_half : require_finite)(scale[h][lane], row, (span.first + h) * grid.group);
  }
}

}  // namespace

void require_half(float scale, int64_t row, int64_t column) {
  require_finite(scale, row, column);
  if (!is_infinite(f16_from_f32(scale))) return;
  fail("out_of_range", "row ", row, ", columns from ", column, ": the scale ", scale, " is too large for fp16");
}

void pack_codes(const infeng_format& format, const Codes& codes, int64_t row, uint8_t* panel) {
  const Packer& known = packer_of(format);
  const int64_t rows = std::min<int64_t>(kLanes, codes.n - row);
  std::memset(panel, 0, size_t(panel_bytes_of(format, codes.k)));
  for (int64_t g = 0; g * kGroup < codes.k; g++) {
    int8_t q[kGroup][kLanes] = {};
    float scale[2][kLanes] = {};
    for (int lane = 0; lane < rows; lane++) load_lane(known.grid, codes, row + lane, lane, g, q, scale);
    known.write(panel, g, q, scale);
  }
}

void unpack_codes(const infeng_format& format, const uint8_t* panel, int64_t k, int8_t* q, float* scale) {
  const Packer& known = packer_of(format);
  const int64_t groups = known.grid.groups(k);
  for (int64_t g = 0; g * kGroup < k; g++) {
    int8_t codes[kGroup][kLanes];
    float scales[2][kLanes];
    format.unpack(panel, g, nullptr, codes, scales);
    const Span span = scales_of(known.grid, g);
    for (int64_t n = 0; n < kLanes; n++) {
      for (int64_t i = 0; i < std::min<int64_t>(kGroup, k - g * kGroup); i++) q[n * k + g * kGroup + i] = codes[i][n];
      for (int h = 0; h < span.count && span.first + h < groups; h++) {
        scale[n * groups + span.first + h] = scales[h][n];
      }
    }
  }
}

}  // namespace infeng
