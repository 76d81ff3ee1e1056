#include "weights/panels.h"

#include <infeng/abi.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "error.h"
#include "library/names.h"
#include "weights/formats.h"
#include "weights/half.h"
#include "weights/quantize.h"

namespace infeng {
namespace {

using Integers = int8_t[kGroup][kLanes];

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

// Where a group of `size` inputs keeps its scales and its nibbles.
struct Int4Place {
  int64_t scales;
  int64_t lines;
};
Int4Place int4_place(int64_t group, int size) {
  const int64_t superblock = group / 2 * (64 + 16 * size);
  return {superblock + group % 2 * 32, superblock + 64 + group % 2 * 8 * size};
}

void pack_int4(const Source& s, int64_t row, int size, uint8_t* out) {
  for (int64_t column = 0; column < s.k; column += kGroup) {
    Group x;
    Integers q;
    load_group(s, row, column, x);
    for (int first = 0; first < kGroup; first += size) {
      uint16_t scale[kLanes];
      const uint32_t overflow = quantize_int4(x + first, size, q + first, scale);
      if (overflow) {
        fail("out_of_range", "row ", row + std::countr_zero(overflow), ", columns from ", column + first,
             ": values too large for an fp16 scale");
      }
      const Int4Place place = int4_place((column + first) / size, size);
      std::memcpy(out + place.scales, scale, sizeof scale);
      write_nibbles(q + first, size / 8, out + place.lines);
    }
  }
}

void pack_int8_row(const Source& s, int64_t row, uint8_t* out) {
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

void pack_f32(const Source& s, int64_t row, uint8_t* out) {
  for (int64_t column = 0; column < s.k; column += kGroup) {
    Group x;
    load_group(s, row, column, x);
    std::memcpy(out + column * sizeof x[0], x, sizeof x);
  }
}

void pack_bf16(const Source& s, int64_t row, uint8_t* out) {
  for (int64_t column = 0; column < s.k; column += kGroup) {
    Group x;
    uint16_t pairs[kGroup / 2][kLanes][2];
    load_group(s, row, column, x);
    for (int k = 0; k < kGroup; k++) {
      for (int n = 0; n < kLanes; n++) {
        const uint16_t half = bf16_from_f32(x[k][n]);
        if ((half & 0x7f80u) == 0x7f80u) {
          fail("out_of_range", "row ", row + n, ", column ", column + k, ": the value is too large for bf16");
        }
        pairs[k / 2][n][k % 2] = half;
      }
    }
    std::memcpy(out + column * kLanes * 2, pairs, sizeof pairs);
  }
}

// The library's own rule, on up to 16 rows of f32.
void pack_foreign(const infeng_format& format, const Source& s, int64_t row, uint8_t* out) {
  if (format.pack == nullptr) {
    fail("unimplemented", "weight format ", format.name, ": the library that brought it cannot pack");
  }
  const int64_t rows = std::min<int64_t>(kLanes, s.n - row);
  std::vector<float> w(static_cast<size_t>(rows * s.k));
  for (int64_t column = 0; column < s.k; column += kGroup) {
    Group x;
    load_group(s, row, column, x);
    for (int64_t n = 0; n < rows; n++) {
      for (int64_t k = 0; k < std::min<int64_t>(kGroup, s.k - column); k++) w[size_t(n * s.k + column + k)] = x[k][n];
    }
  }
  char message[200] = {};
  infeng_worker worker{sizeof worker, 0, 1, sizeof message, nullptr, nullptr, message};
  const infeng_status status = format.pack(w.data(), s.k, rows, s.k, out, &worker);
  if (status == INFENG_OK) return;
  message[sizeof message - 1] = '\0';
  fail(status_code(status), "row ", row, ": weight format ", format.name, ": ", message);
}

void unpack_foreign(const infeng_format& format, const uint8_t* panel, int64_t g, Group x) {
  Integers q;
  float scale[2][kLanes];
  format.unpack(panel, g, x, q, scale);
  if (format.group == 0) return;
  for (int k = 0; k < kGroup; k++) {
    for (int n = 0; n < kLanes; n++) x[k][n] = float(q[k][n]) * scale[k / int(format.group)][n];
  }
}

}  // namespace

void pack_panel(uint32_t format, const Source& s, int64_t row, uint8_t* out) {
  if (const infeng_format* foreign = foreign_format(format)) return pack_foreign(*foreign, s, row, out);
  switch (format) {
    case INFENG_WEIGHT_F32:
      return pack_f32(s, row, out);
    case INFENG_WEIGHT_BF16:
      return pack_bf16(s, row, out);
    case INFENG_WEIGHT_INT8_ROW:
      return pack_int8_row(s, row, out);
    case INFENG_WEIGHT_INT4_G64:
      // A last half superblock keeps its full line of scales; the unused half is zero.
      std::memset(out + (s.k - 1) / (2 * kGroup) * (64 + 1024), 0, 64);
      return pack_int4(s, row, 64, out);
    default:
      return pack_int4(s, row, 32, out);
  }
}

void unpack_group(uint32_t format, const uint8_t* panel, int64_t g, Group x) {
  if (const infeng_format* foreign = foreign_format(format)) return unpack_foreign(*foreign, panel, g, x);
  Integers q;
  float scale[2][kLanes];
  int size = kGroup;
  switch (format) {
    case INFENG_WEIGHT_F32:
      std::memcpy(x, panel + g * sizeof(Group), sizeof(Group));
      return;
    case INFENG_WEIGHT_BF16: {
      uint16_t pairs[kGroup / 2][kLanes][2];
      std::memcpy(pairs, panel + g * sizeof pairs, sizeof pairs);
      for (int k = 0; k < kGroup; k++) {
        for (int n = 0; n < kLanes; n++) x[k][n] = f32_from_bf16(pairs[k / 2][n][k % 2]);
      }
      return;
    }
    case INFENG_WEIGHT_INT8_ROW: {
      const uint8_t* lines = panel + 64 + g * kGroup * kLanes;
      std::memcpy(scale[0], panel, sizeof scale[0]);
      for (int k = 0; k < kGroup; k++) {
        for (int n = 0; n < kLanes; n++) q[k][n] = int8_t(lines[(k / 4) * 64 + 4 * n + k % 4] - 128);
      }
      break;
    }
    default:
      size = format == INFENG_WEIGHT_INT4_G64 ? 64 : 32;
      for (int h = 0; h < kGroup / size; h++) {
        const Int4Place place = int4_place(g * kGroup / size + h, size);
        uint16_t half[kLanes];
        std::memcpy(half, panel + place.scales, sizeof half);
        for (int n = 0; n < kLanes; n++) scale[h][n] = f32_from_f16(half[n]);
        read_nibbles(panel + place.lines, size / 8, q + h * size);
      }
  }
  for (int k = 0; k < kGroup; k++) {
    for (int n = 0; n < kLanes; n++) x[k][n] = float(q[k][n]) * scale[k / size][n];
  }
}

}  // namespace infeng
