#include "codes.h"

#include <infeng/extension/error.h>
#include <infeng/extension/half.h>

#include <algorithm>
#include <cmath>
#include <cstring>

namespace infeng {
namespace {

// The group of input `i` of block g.
int64_t group_at(const CodeGrid& grid, int64_t g, int64_t i) {
  return grid.group == 0 ? 0 : (g * kGroup + i) / grid.group;
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
  for (int64_t i = 0; i < end - begin; i += grid.step()) {
    const int64_t group = group_at(grid, g, i);
    float& loaded = scale[i / grid.step()][lane] = codes.scale[row * groups + group];
    (grid.half ? require_half : require_finite)(loaded, row, group * grid.group);
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
  const CodeGrid grid = grid_of(format).value();
  const int64_t rows = std::min<int64_t>(kLanes, codes.n - row);
  std::memset(panel, 0, size_t(panel_bytes_of(format, codes.k)));
  for (int64_t g = 0; g * kGroup < codes.k; g++) {
    alignas(64) infeng_block block = {};
    block.struct_size = sizeof block;
    for (int lane = 0; lane < rows; lane++) load_lane(grid, codes, row + lane, lane, g, block.q, block.scale);
    if (known.write != nullptr) {
      known.write(panel, g, block.q, block.scale);
    } else {
      format.write(panel, g, &block);
    }
  }
}

void unpack_codes(const infeng_format& format, const uint8_t* panel, int64_t k, int8_t* q, float* scale) {
  const CodeGrid grid = grid_of(format).value();
  const int64_t groups = grid.groups(k);
  for (int64_t g = 0; g * kGroup < k; g++) {
    alignas(64) infeng_block block;
    block.struct_size = sizeof block;
    format.unpack(panel, g, &block);
    const int64_t count = std::min<int64_t>(kGroup, k - g * kGroup), step = grid.step();
    for (int64_t n = 0; n < kLanes; n++) {
      for (int64_t i = 0; i < count; i++) q[n * k + g * kGroup + i] = block.q[i][n];
      for (int64_t i = 0; i < count; i += step) {
        scale[n * groups + group_at(grid, g, i)] = block.scale[i / step][n];
      }
    }
  }
}

}  // namespace infeng
