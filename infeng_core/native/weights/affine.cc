// int4-a256 and int4-a128: w = d[n] * s u - e[n] * t, with bytes s and t for every 32 inputs of an output, and fp16 d
// and e for every superblock of 256 or 128.
#include <infeng/extension/half.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "error.h"
#include "weights/arena.h"
#include "weights/codes.h"
#include "weights/formats.h"
#include "weights/quantize_affine.h"
#include "weights/weight.h"

namespace infeng {
namespace {

template <int kSuper>
struct AffineLayout {
  static constexpr int64_t kBlocks = kSuper / kGroup;  // of 64 inputs in a superblock
  static constexpr int64_t kBlock = 9 * kLine;         // a line of s and t, 8 of nibbles
  static constexpr int64_t kSuperblock = kLine + kBlocks * kBlock;

  static int64_t bytes(int64_t k) { return (k + kSuper - 1) / kSuper * kLine + k / kGroup * kBlock; }
  static int64_t superblock_at(int64_t g) { return g / kBlocks * kSuperblock; }
  static int64_t block_at(int64_t g) { return superblock_at(g) + kLine + g % kBlocks * kBlock; }

  // Offset of s of group `q` of 32 inputs; t is two bytes further.
  static int64_t scale_at(int64_t q, int n) { return block_at(q / 2) + 4 * n + q % 2; }
  // Byte 4n + j of line l holds input 4l + j below and input 4 (l + 4) + j above.
  static int64_t byte_at(int64_t q, int k, int n) {
    return block_at(q / 2) + kLine + q % 2 * (4 * kLine) + k / 4 % 4 * kLine + 4 * n + k % 4;
  }

  static void write_half(uint8_t* line, int n, uint16_t half) { std::memcpy(line + 2 * n, &half, sizeof half); }
  static uint16_t read_half(const uint8_t* line, int n) {
    uint16_t half;
    std::memcpy(&half, line + 2 * n, sizeof half);
    return half;
  }
  static void write_unit(uint8_t* panel, int64_t q, int k, int n, uint8_t u) {
    panel[byte_at(q, k, n)] |= uint8_t(u << (k < 16 ? 0 : 4));
  }

  static void read(const void* data, int64_t g, Group w, Integers, Scales) {
    const auto* panel = static_cast<const uint8_t*>(data);
    const uint8_t* halves = panel + superblock_at(g);
    for (int n = 0; n < kLanes; n++) {
      const float d = f32_from_f16(read_half(halves, n)), e = f32_from_f16(read_half(halves, kLanes + n));
      for (int k = 0; k < kGroup; k++) {
        const int64_t q = 2 * g + k / kAffineGroup;
        const int i = k % kAffineGroup;
        const int u = panel[byte_at(q, i, n)] >> (i < 16 ? 0 : 4) & 15;
        const uint8_t* scale = panel + scale_at(q, n);
        w[k][n] = d * float(scale[0] * u) - e * float(scale[2]);
      }
    }
  }

  // Checks a panel of a file: every byte is valid, except fp16 scales that are not finite.
  static void check(const uint8_t* panel, int64_t k, int64_t row) {
    for (int64_t g = 0; g * kGroup < k; g += kBlocks) {
      const uint8_t* halves = panel + superblock_at(g);
      for (int n = 0; n < 2 * kLanes; n++) {
        if (!is_infinite(read_half(halves, n))) continue;
        fail("not_finite", "row ", row + n % kLanes, ", columns from ", g * kGroup, ": the scale of ",
             n < kLanes ? "sub-scales" : "minima", " is NaN or infinite");
      }
    }
  }

  // ------------------------------------------------------------------------------------------ from units to panels ---

  static void write(const MinimaUnits& units, int64_t row, uint8_t* panel) {
    const int rows = int(std::min<int64_t>(kLanes, units.n - row));
    for (int n = 0; n < rows; n++) write_row(units, row + n, n, panel);
  }

  static void write_row(const MinimaUnits& units, int64_t row, int n, uint8_t* panel) {
    const int64_t blocks = kScaling.blocks(units.k), groups = kScaling.groups(units.k);
    for (int64_t b = 0; b < blocks; b++) {
      uint8_t* halves = panel + superblock_at(b * kBlocks);
      write_half(halves, n, half_of(units.d[row * blocks + b], row, b));
      write_half(halves, kLanes + n, half_of(units.e[row * blocks + b], row, b));
    }
    for (int64_t q = 0; q < groups; q++) {
      panel[scale_at(q, n)] = units.s[row * groups + q];
      panel[scale_at(q, n) + 2] = units.t[row * groups + q];
    }
    for (int64_t k = 0; k < units.k; k++) {
      const int u = units.u[row * units.k + k];
      if (u < 0 || u > 15) fail("out_of_range", "row ", row, ", column ", k, ": code ", u, " is outside of 0 to 15");
      write_unit(panel, k / kAffineGroup, int(k % kAffineGroup), n, uint8_t(u));
    }
  }

  static uint16_t half_of(float value, int64_t row, int64_t block) {
    require_half(value, row, block * kSuper);
    return f16_from_f32(value);
  }

  static constexpr MinimaScaling kScaling{kAffineGroup, kSuper, write};

  // ----------------------------------------------------------------------------------------- from floats to panels ---

  static void pack(const WeightFormat& format, const Source& s, int64_t row, uint8_t* panel) {
    std::memset(panel, 0, size_t(panel_bytes_of(format.abi.number, s.k)));  // padding stays zero
    for (int64_t column = 0; column < s.k; column += kSuper) {
      float x[kSuper][kLanes];
      const int64_t count = std::min<int64_t>(kSuper, s.k - column);
      for (int64_t k = 0; k < count; k += kGroup) load_group(s, row, column + k, x + k);
      AffineBlock block;
      const uint32_t overflow = quantize_affine({x, count}, &block);
      if (overflow != 0) {
        fail("out_of_range", "row ", row + std::countr_zero(overflow), ", columns from ", column,
             ": values too large for an fp16 scale");
      }
      write_block(panel, column, count, block);
    }
  }

  static void write_block(uint8_t* panel, int64_t column, int64_t count, const AffineBlock& block) {
    uint8_t* halves = panel + superblock_at(column / kGroup);
    std::memcpy(halves, block.d, sizeof block.d);
    std::memcpy(halves + sizeof block.d, block.e, sizeof block.e);
    for (int n = 0; n < kLanes; n++) {
      for (int64_t k = 0; k < count; k++) {
        const int64_t group = k / kAffineGroup, q = column / kAffineGroup + group;
        panel[scale_at(q, n)] = block.s[group][n];
        panel[scale_at(q, n) + 2] = block.t[group][n];
        write_unit(panel, q, int(k % kAffineGroup), n, block.u[k][n]);
      }
    }
  }
};

// `unpack` returns values like that of a float format, so the ABI's group is 0.
template <int kSuper>
constexpr WeightFormat described_affine(uint32_t number, const char* name) {
  using L = AffineLayout<kSuper>;
  return {{sizeof(infeng_format), number, name, INFENG_ACT_INT8_G64, 0, L::bytes, nullptr, L::read},
          {0, 0, 15, true},
          L::pack,
          nullptr,
          L::check,
          nullptr,
          &L::kScaling};
}

constexpr WeightFormat kAffineFormats[] = {
    described_affine<256>(INFENG_WEIGHT_INT4_A256, "int4-a256"),
    described_affine<128>(INFENG_WEIGHT_INT4_A128, "int4-a128"),
};

}  // namespace

std::span<const WeightFormat> affine_formats() { return kAffineFormats; }

}  // namespace infeng
