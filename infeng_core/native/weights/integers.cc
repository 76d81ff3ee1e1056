// int8-row, int4-g64 and int4-g32: integers with a scale for an output or for each group of its inputs.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "error.h"
#include "weights/arena.h"
#include "weights/formats.h"
#include "weights/half.h"
#include "weights/quantize.h"

namespace infeng {
namespace {

using Integers = int8_t[kGroup][kLanes];

void pack_int8_row(const WeightFormat&, const Source& s, int64_t row, uint8_t* out) {
  float amax[kLanes] = {}, scale[kLanes];
  Group x;
  for (int64_t column = 0; column < s.k; column += kGroup) {
    load_group(s, row, column, x);
    for (int k = 0; k < kGroup; k++) {
      for (int n = 0; n < kLanes; n++) amax[n] = std::max(amax[n], std::abs(x[k][n]));
    }
  }
  for (int n = 0; n < kLanes; n++) scale[n] = int8_scale(amax[n]);
  std::memcpy(out, scale, sizeof scale);
  for (int64_t column = 0; column < s.k; column += kGroup) {
    Integers q;
    load_group(s, row, column, x);
    quantize_int8(x, kGroup, amax, q);
    uint8_t* lines = out + 64 + column * kLanes;
    for (int k = 0; k < kGroup; k++) {
      for (int n = 0; n < kLanes; n++) lines[(k / 4) * 64 + 4 * n + k % 4] = uint8_t(q[k][n] + 128);
    }
  }
}

void unpack_int8_row(const void* panel, int64_t g, Group, Integers q, float (*scale)[kLanes]) {
  const auto* lines = static_cast<const uint8_t*>(panel) + 64 + g * kGroup * kLanes;
  std::memcpy(scale[0], panel, sizeof scale[0]);
  for (int k = 0; k < kGroup; k++) {
    for (int n = 0; n < kLanes; n++) q[k][n] = int8_t(lines[(k / 4) * 64 + 4 * n + k % 4] - 128);
  }
}

int64_t int8_row_bytes(int64_t k) { return (1 + k / 4) * kLine; }

// Byte 4n + j of line l holds input 4l + j below and input 4 (l + lines) + j above.
void write_nibbles(const int8_t (*q)[kLanes], int lines, uint8_t* out) {
  for (int l = 0; l < lines; l++) {
    for (int n = 0; n < kLanes; n++) {
      for (int j = 0; j < 4; j++) {
        const int low = q[4 * l + j][n] + 8;
        const int high = q[4 * (l + lines) + j][n] + 8;
        out[64 * l + 4 * n + j] = uint8_t(low | high << 4);
      }
    }
  }
}

void read_nibbles(const uint8_t* data, int lines, int8_t (*q)[kLanes]) {
  for (int l = 0; l < lines; l++) {
    for (int n = 0; n < kLanes; n++) {
      for (int j = 0; j < 4; j++) {
        const int byte = data[64 * l + 4 * n + j];
        q[4 * l + j][n] = int8_t((byte & 15) - 8);
        q[4 * (l + lines) + j][n] = int8_t((byte >> 4) - 8);
      }
    }
  }
}

// A superblock is two groups of kSize inputs: their scales in one line, then the nibbles of one and of the other.
template <int kSize>
struct Int4 {
  static constexpr int kGroupBytes = kSize / 2 * kLanes;
  static constexpr int64_t kSuperblock = kLine + 2 * kGroupBytes;

  static int64_t scales_at(int64_t group) { return group / 2 * kSuperblock + group % 2 * (kLine / 2); }
  static int64_t lines_at(int64_t group) { return group / 2 * kSuperblock + kLine + group % 2 * kGroupBytes; }

  static int64_t bytes(int64_t k) { return (round_up(k, 2 * kSize) / (2 * kSize) + k / 8) * kLine; }

  static void pack(const WeightFormat&, const Source& s, int64_t row, uint8_t* out) {
    // A last half superblock keeps its full line of scales; the unused half is zero.
    std::memset(out + (s.k - 1) / (2 * kSize) * kSuperblock, 0, kLine);
    for (int64_t column = 0; column < s.k; column += kGroup) {
      Group x;
      Integers q;
      load_group(s, row, column, x);
      for (int first = 0; first < kGroup; first += kSize) {
        uint16_t scale[kLanes];
        const uint32_t overflow = quantize_int4(x + first, kSize, q + first, scale);
        if (overflow) {
          fail("out_of_range", "row ", row + std::countr_zero(overflow), ", columns from ", column + first,
               ": values too large for an fp16 scale");
        }
        const int64_t group = (column + first) / kSize;
        std::memcpy(out + scales_at(group), scale, sizeof scale);
        write_nibbles(q + first, kSize / 8, out + lines_at(group));
      }
    }
  }

  static void unpack(const void* panel, int64_t g, Group, Integers q, float (*scale)[kLanes]) {
    const auto* bytes = static_cast<const uint8_t*>(panel);
    for (int h = 0; h < kGroup / kSize; h++) {
      const int64_t group = g * (kGroup / kSize) + h;
      uint16_t half[kLanes];
      std::memcpy(half, bytes + scales_at(group), sizeof half);
      for (int n = 0; n < kLanes; n++) scale[h][n] = f32_from_f16(half[n]);
      read_nibbles(bytes + lines_at(group), kSize / 8, q + h * kSize);
    }
  }
};

constexpr infeng_format described(uint32_t number, const char* name, uint32_t group, int64_t (*bytes)(int64_t),
                                  decltype(infeng_format::unpack) unpack) {
  return {sizeof(infeng_format), number, name, INFENG_ACT_INT8_G64, group, bytes, nullptr, unpack};
}

constexpr WeightFormat kFormats[] = {
    {described(INFENG_WEIGHT_INT8_ROW, "int8-row", 64, int8_row_bytes, unpack_int8_row), -127, 127, pack_int8_row},
    {described(INFENG_WEIGHT_INT4_G64, "int4-g64", 64, Int4<64>::bytes, Int4<64>::unpack), -8, 7, Int4<64>::pack},
    {described(INFENG_WEIGHT_INT4_G32, "int4-g32", 32, Int4<32>::bytes, Int4<32>::unpack), -8, 7, Int4<32>::pack},
};

}  // namespace

std::span<const WeightFormat> integer_formats() { return kFormats; }

}  // namespace infeng
