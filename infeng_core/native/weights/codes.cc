#include "weights/codes.h"

#include <infeng/abi.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "error.h"
#include "weights/half.h"
#include "weights/quantize.h"
#include "weights/weight.h"

namespace infeng {
namespace {

using Integers = int8_t[kGroup][kLanes];
using Scales = float[2][kLanes];  // of the one or two groups among 64 inputs

// Where 64 inputs of a panel lie, and how. docs/format.md draws it.
struct Layout {
  CodeGrid grid;
  void (*write)(uint8_t* panel, int64_t g, const Integers& q, const Scales& scale);
  void (*read)(const uint8_t* panel, int64_t g, Integers& q, Scales& scale);
};

struct Int8Row {
  static int64_t byte_at(int64_t g, int k, int n) { return 64 + g * kGroup * kLanes + k / 4 * 64 + 4 * n + k % 4; }

  static void write(uint8_t* panel, int64_t g, const Integers& q, const Scales& scale) {
    std::memcpy(panel, scale[0], sizeof scale[0]);
    for (int k = 0; k < kGroup; k++) {
      for (int n = 0; n < kLanes; n++) panel[byte_at(g, k, n)] = uint8_t(q[k][n] + 128);
    }
  }

  static void read(const uint8_t* panel, int64_t g, Integers& q, Scales& scale) {
    std::memcpy(scale[0], panel, sizeof scale[0]);
    for (int k = 0; k < kGroup; k++) {
      for (int n = 0; n < kLanes; n++) q[k][n] = int8_t(panel[byte_at(g, k, n)] - 128);
    }
  }
};

// A superblock is two groups of kSize inputs: their scales in one line, then the nibbles of one and of the other.
template <int kSize>
struct Int4 {
  static constexpr int kLines = kSize / 8;  // of one group
  static constexpr int64_t kSuperblock = 64 + 2 * 64 * kLines;

  static int64_t scales_at(int64_t group) { return group / 2 * kSuperblock + group % 2 * 32; }

  // Byte 4n + j of line l holds input 4l + j below and input 4 (l + kLines) + j above.
  static int64_t byte_at(int64_t group, int k, int n) {
    const int line = k / 4 % kLines;
    return group / 2 * kSuperblock + 64 + group % 2 * 64 * kLines + 64 * line + 4 * n + k % 4;
  }

  static void write(uint8_t* panel, int64_t g, const Integers& q, const Scales& scale) {
    for (int h = 0; h < kGroup / kSize; h++) {
      const int64_t group = g * (kGroup / kSize) + h;
      uint16_t half[kLanes];
      for (int n = 0; n < kLanes; n++) half[n] = f16_from_f32(scale[h][n]);
      std::memcpy(panel + scales_at(group), half, sizeof half);
      const int8_t(*from)[kLanes] = q + h * kSize;
      for (int k = 0; k < kSize / 2; k++) {
        for (int n = 0; n < kLanes; n++) {
          panel[byte_at(group, k, n)] = uint8_t((from[k][n] + 8) | (from[k + kSize / 2][n] + 8) << 4);
        }
      }
    }
  }

  static void read(const uint8_t* panel, int64_t g, Integers& q, Scales& scale) {
    for (int h = 0; h < kGroup / kSize; h++) {
      const int64_t group = g * (kGroup / kSize) + h;
      uint16_t half[kLanes];
      std::memcpy(half, panel + scales_at(group), sizeof half);
      for (int n = 0; n < kLanes; n++) scale[h][n] = f32_from_f16(half[n]);
      int8_t(*to)[kLanes] = q + h * kSize;
      for (int k = 0; k < kSize / 2; k++) {
        for (int n = 0; n < kLanes; n++) {
          const int byte = panel[byte_at(group, k, n)];
          to[k][n] = int8_t((byte & 15) - 8);
          to[k + kSize / 2][n] = int8_t((byte >> 4) - 8);
        }
      }
    }
  }
};

const Layout* layout_of(uint32_t format) {
  static constexpr Layout kInt8Row{{0, -127, 127, false}, Int8Row::write, Int8Row::read};
  static constexpr Layout kInt4G64{{64, -8, 7, true}, Int4<64>::write, Int4<64>::read};
  static constexpr Layout kInt4G32{{32, -8, 7, true}, Int4<32>::write, Int4<32>::read};
  switch (format) {
    case INFENG_WEIGHT_INT8_ROW:
      return &kInt8Row;
    case INFENG_WEIGHT_INT4_G64:
      return &kInt4G64;
    case INFENG_WEIGHT_INT4_G32:
      return &kInt4G32;
    default:
      return nullptr;
  }
}

// Of 64 inputs: how many scales they have, and which is the first of them.
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

void require_scale(const CodeGrid& grid, float scale, int64_t row, int64_t index) {
  const int64_t column = index * grid.group;
  if (!std::isfinite(scale)) {
    fail("not_finite", "row ", row, ", columns from ", column, ": the scale is ", scale);
  }
  if (grid.half && (f16_from_f32(scale) & 0x7c00u) == 0x7c00u) {
    fail("out_of_range", "row ", row, ", columns from ", column, ": the scale ", scale, " is too large for fp16");
  }
}

void load_lane(const CodeGrid& grid, const Codes& codes, int64_t row, int lane, int64_t g, Integers& q, Scales& scale) {
  const int64_t begin = g * kGroup, end = std::min<int64_t>(begin + kGroup, codes.k), groups = grid.groups(codes.k);
  for (int64_t k = begin; k < end; k++) {
    const int8_t code = codes.q[row * codes.k + k];
    require_code(grid, code, row, k);
    q[k - begin][lane] = code;
  }
  const Span span = scales_of(grid, g);
  for (int h = 0; h < span.count && span.first + h < groups; h++) {
    scale[h][lane] = codes.scale[row * groups + span.first + h];
    require_scale(grid, scale[h][lane], row, span.first + h);
  }
}

}  // namespace

const CodeGrid* code_grid(uint32_t format) {
  const Layout* layout = layout_of(format);
  return layout == nullptr ? nullptr : &layout->grid;
}

void pack_codes(uint32_t format, const Codes& codes, int64_t row, uint8_t* panel) {
  const Layout& layout = *layout_of(format);
  const int64_t rows = std::min<int64_t>(kLanes, codes.n - row);
  std::memset(panel, 0, size_t(panel_bytes_of(format, codes.k)));  // a last half superblock's unused scales stay zero
  for (int64_t g = 0; g * kGroup < codes.k; g++) {
    Integers q{};
    Scales scale{};
    for (int lane = 0; lane < rows; lane++) load_lane(layout.grid, codes, row + lane, lane, g, q, scale);
    layout.write(panel, g, q, scale);
  }
}

void unpack_codes(uint32_t format, const uint8_t* panel, int64_t k, int8_t* q, float* scale) {
  const Layout& layout = *layout_of(format);
  const int64_t groups = layout.grid.groups(k);
  for (int64_t g = 0; g * kGroup < k; g++) {
    Integers codes;
    Scales scales;
    layout.read(panel, g, codes, scales);
    const Span span = scales_of(layout.grid, g);
    for (int64_t n = 0; n < kLanes; n++) {
      for (int64_t i = 0; i < std::min<int64_t>(kGroup, k - g * kGroup); i++) q[n * k + g * kGroup + i] = codes[i][n];
      for (int h = 0; h < span.count && span.first + h < groups; h++) {
        scale[n * groups + span.first + h] = scales[h][n];
      }
    }
  }
}

}  // namespace infeng
