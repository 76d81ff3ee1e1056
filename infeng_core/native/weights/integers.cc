// int8-row, int8-g32, int4-g64 and int4-g32: integers with one scale per output, or per group of its inputs.
#include <infeng/extension/half.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "error.h"
#include "weights/arena.h"
#include "weights/formats.h"
#include "weights/quantize.h"
#include "weights/weight.h"

namespace infeng {
namespace {

// --------------------------------------------------------------------------------- layout of 64 inputs in a panel ---

// 16 fp16 scales take half a line.
void write_halves(uint8_t* line, const float scale[kLanes]) {
  uint16_t half[kLanes];
  for (int n = 0; n < kLanes; n++) half[n] = f16_from_f32(scale[n]);
  std::memcpy(line, half, sizeof half);
}

void read_halves(const uint8_t* line, float scale[kLanes]) {
  uint16_t half[kLanes];
  std::memcpy(half, line, sizeof half);
  for (int n = 0; n < kLanes; n++) scale[n] = f32_from_f16(half[n]);
}

// Checks the line of scales of two groups of `size` inputs in a file.
void check_halves(const uint8_t* line, int64_t size, int64_t row, int64_t column) {
  uint16_t half[2 * kLanes];
  std::memcpy(half, line, sizeof half);
  for (int i = 0; i < 2 * kLanes; i++) {
    if (!is_infinite(half[i])) continue;
    fail("not_finite", "row ", row + i % kLanes, ", columns from ", column + i / kLanes * size,
         ": the scale is NaN or infinite");
  }
}

// 64 inputs take 16 lines: byte 4n + j of line l holds q + 128 of input 4l + j.
constexpr int64_t kByteLines = kGroup * kLanes;

void write_bytes(uint8_t* lines, ConstIntegers q) {
  for (int k = 0; k < kGroup; k++) {
    for (int n = 0; n < kLanes; n++) lines[k / 4 * kLine + 4 * n + k % 4] = uint8_t(q[k][n] + 128);
  }
}

void read_bytes(const uint8_t* lines, Integers q) {
  for (int k = 0; k < kGroup; k++) {
    for (int n = 0; n < kLanes; n++) q[k][n] = int8_t(lines[k / 4 * kLine + 4 * n + k % 4] - 128);
  }
}

struct Int8Row {
  static int64_t bytes(int64_t k) { return (1 + k / 4) * kLine; }

  static void write(uint8_t* panel, int64_t g, ConstIntegers q, ConstScales scale) {
    std::memcpy(panel, scale[0], sizeof scale[0]);
    write_bytes(panel + kLine + g * kByteLines, q);
  }

  static void read(const void* data, int64_t g, Group, Integers q, Scales scale) {
    const auto* panel = static_cast<const uint8_t*>(data);
    std::memcpy(scale[0], panel, sizeof scale[0]);
    read_bytes(panel + kLine + g * kByteLines, q);
  }

  static void check(const uint8_t* panel, int64_t, int64_t row) {
    float scale[kLanes];
    std::memcpy(scale, panel, sizeof scale);
    for (int n = 0; n < kLanes; n++) {
      if (!std::isfinite(scale[n])) fail("not_finite", "row ", row + n, ": the scale is ", scale[n]);
    }
  }
};

// A line holds the scales of two groups of 32 inputs; the groups' bytes follow.
struct Int8G32 {
  static constexpr int64_t kSuperblock = kLine + kByteLines;

  static int64_t bytes(int64_t k) { return k / kGroup * kSuperblock; }

  static void write(uint8_t* panel, int64_t g, ConstIntegers q, ConstScales scale) {
    uint8_t* superblock = panel + g * kSuperblock;
    for (int h = 0; h < 2; h++) write_halves(superblock + h * (kLine / 2), scale[h]);
    write_bytes(superblock + kLine, q);
  }

  static void read(const void* data, int64_t g, Group, Integers q, Scales scale) {
    const uint8_t* superblock = static_cast<const uint8_t*>(data) + g * kSuperblock;
    for (int h = 0; h < 2; h++) read_halves(superblock + h * (kLine / 2), scale[h]);
    read_bytes(superblock + kLine, q);
  }

  static void check(const uint8_t* panel, int64_t k, int64_t row) {
    for (int64_t g = 0; g * kGroup < k; g++) check_halves(panel + g * kSuperblock, kGroup / 2, row, g * kGroup);
  }
};

// A superblock is two groups of kSize inputs: a line with the scales of both, the nibbles of the first, the nibbles of
// the second. If the last superblock has one group, its line of scales is still whole.
template <int kSize>
struct Int4 {
  static constexpr int kGroups = kGroup / kSize;
  static constexpr int kLines = kSize / 8;  // of one group
  static constexpr int64_t kSuperblock = kLine + 2 * kLine * kLines;

  static int64_t bytes(int64_t k) { return (round_up(k, 2 * kSize) / (2 * kSize) + k / 8) * kLine; }
  static int64_t scales_at(int64_t group) { return group / 2 * kSuperblock + group % 2 * (kLine / 2); }

  // Byte 4n + j of line l holds input 4l + j below and input 4 (l + kLines) + j above.
  static int64_t byte_at(int64_t group, int k, int n) {
    return group / 2 * kSuperblock + kLine + group % 2 * kLine * kLines + k / 4 * kLine + 4 * n + k % 4;
  }

  static void write(uint8_t* panel, int64_t g, ConstIntegers q, ConstScales scale) {
    for (int h = 0; h < kGroups; h++) {
      const int64_t group = g * kGroups + h;
      write_halves(panel + scales_at(group), scale[h]);
      const ConstIntegers low = q + h * kSize, high = low + kSize / 2;
      for (int k = 0; k < kSize / 2; k++) {
        for (int n = 0; n < kLanes; n++) panel[byte_at(group, k, n)] = uint8_t((low[k][n] + 8) | (high[k][n] + 8) << 4);
      }
    }
  }

  static void read(const void* data, int64_t g, Group, Integers q, Scales scale) {
    const auto* panel = static_cast<const uint8_t*>(data);
    for (int h = 0; h < kGroups; h++) {
      const int64_t group = g * kGroups + h;
      read_halves(panel + scales_at(group), scale[h]);
      int8_t(*low)[kLanes] = q + h * kSize, (*high)[kLanes] = low + kSize / 2;
      for (int k = 0; k < kSize / 2; k++) {
        for (int n = 0; n < kLanes; n++) {
          const int byte = panel[byte_at(group, k, n)];
          low[k][n] = int8_t((byte & 15) - 8);
          high[k][n] = int8_t((byte >> 4) - 8);
        }
      }
    }
  }

  static void check(const uint8_t* panel, int64_t k, int64_t row) {
    for (int64_t s = 0; 2 * s * kSize < k; s++) check_halves(panel + s * kSuperblock, kSize, row, 2 * s * kSize);
  }
};

// ------------------------------------------------------------------------------------------------ choice of scales ---

// One scale for all inputs of an output.
class ByRow {
 public:
  ByRow(const Source& s, int64_t row) {
    for (int64_t column = 0; column < s.k; column += kGroup) {
      Group x;
      load_group(s, row, column, x);
      for (int k = 0; k < kGroup; k++) {
        for (int n = 0; n < kLanes; n++) amax_[n] = std::max(amax_[n], std::abs(x[k][n]));
      }
    }
  }

  void quantize(Group x, int64_t, int64_t, Integers q, Scales scale) const {
    for (int n = 0; n < kLanes; n++) scale[0][n] = int8_scale(amax_[n]);
    quantize_int8(x, kGroup, amax_, q);
  }

 private:
  float amax_[kLanes] = {};
};

// One fp16 scale for each kSize inputs, by a rule of quantize.h.
template <int kSize, auto kRule>
class ByGroup {
 public:
  ByGroup(const Source&, int64_t) {}

  void quantize(Group x, int64_t row, int64_t column, Integers q, Scales scale) const {
    for (int h = 0; h < kGroup / kSize; h++) {
      uint16_t half[kLanes];
      const uint32_t overflow = kRule(x + h * kSize, kSize, q + h * kSize, half);
      if (overflow) {
        fail("out_of_range", "row ", row + std::countr_zero(overflow), ", columns from ", column + h * kSize,
             ": values too large for an fp16 scale");
      }
      for (int n = 0; n < kLanes; n++) scale[h][n] = f32_from_f16(half[n]);
    }
  }
};

template <class Rule>
void pack(const WeightFormat& format, const Source& s, int64_t row, uint8_t* panel) {
  std::memset(panel, 0, size_t(panel_bytes_of(format.abi.number, s.k)));  // padding stays zero
  const Rule rule(s, row);
  for (int64_t g = 0; g * kGroup < s.k; g++) {
    Group x;
    int8_t q[kGroup][kLanes];
    float scale[2][kLanes];
    load_group(s, row, g * kGroup, x);
    rule.quantize(x, row, g * kGroup, q, scale);
    format.write(panel, g, q, scale);
  }
}

// --------------------------------------------------------------------------------------------------- the formats ---

template <class Layout, class Rule>
constexpr WeightFormat described(uint32_t number, const char* name, uint32_t group, CodeGrid grid) {
  return {{sizeof(infeng_format), number, name, INFENG_ACT_INT8_G64, group, Layout::bytes, nullptr, Layout::read},
          grid,
          pack<Rule>,
          Layout::write,
          Layout::check};
}

constexpr WeightFormat kIntegerFormats[] = {
    described<Int8Row, ByRow>(INFENG_WEIGHT_INT8_ROW, "int8-row", 64, {0, -127, 127, false}),
    described<Int4<64>, ByGroup<64, quantize_int4>>(INFENG_WEIGHT_INT4_G64, "int4-g64", 64, {64, -8, 7, true}),
    described<Int4<32>, ByGroup<32, quantize_int4>>(INFENG_WEIGHT_INT4_G32, "int4-g32", 32, {32, -8, 7, true}),
    described<Int8G32, ByGroup<32, quantize_int8_group>>(INFENG_WEIGHT_INT8_G32, "int8-g32", 32, {32, -128, 127, true}),
};

}  // namespace

std::span<const WeightFormat> integer_formats() { return kIntegerFormats; }

}  // namespace infeng
