// int4-a256 and int4-a128: w = d[n] * s u - e[n] * t, with bytes s and t for every 32 inputs of an output, and fp16 d
// and e for every superblock of 256 or 128.
#include <infeng/extension/error.h>
#include <infeng/extension/panel_affine.h>

#include <algorithm>
#include <bit>

#include "codes.h"
#include "packers.h"
#include "quantize_affine.h"

namespace infeng {
namespace {

template <int kSuper>
struct AffinePacker {
  using L = AffineLayout<kSuper>;

  // ------------------------------------------------------------------------------------------ from units to panels ---

  static void write(const MinimaUnits& units, int64_t row, uint8_t* panel) {
    const int rows = int(std::min<int64_t>(kLanes, units.n - row));
    for (int n = 0; n < rows; n++) write_row(units, row + n, n, panel);
  }

  static void write_row(const MinimaUnits& units, int64_t row, int n, uint8_t* panel) {
    const int64_t blocks = kMinima.blocks(units.k), groups = kMinima.groups(units.k);
    for (int64_t b = 0; b < blocks; b++) {
      uint8_t* halves = panel + L::superblock_at(b * L::kBlocks);
      L::write_half(halves, n, half_of(units.d[row * blocks + b], row, b));
      L::write_half(halves, kLanes + n, half_of(units.e[row * blocks + b], row, b));
    }
    for (int64_t q = 0; q < groups; q++) {
      panel[L::scale_at(q, n)] = units.s[row * groups + q];
      panel[L::scale_at(q, n) + 2] = units.t[row * groups + q];
    }
    for (int64_t k = 0; k < units.k; k++) {
      const int u = units.u[row * units.k + k];
      if (u < 0 || u > 15) fail("out_of_range", "row ", row, ", column ", k, ": code ", u, " is outside of 0 to 15");
      L::write_unit(panel, k / kAffineGroup, int(k % kAffineGroup), n, uint8_t(u));
    }
  }

  static uint16_t half_of(float value, int64_t row, int64_t block) {
    require_half(value, row, block * kSuper);
    return f16_from_f32(value);
  }

  static constexpr MinimaPacker kMinima{kAffineGroup, kSuper, write};

  // ----------------------------------------------------------------------------------------- from floats to panels ---

  static void pack(const infeng_format& format, const Source& s, int64_t row, uint8_t* panel) {
    std::memset(panel, 0, size_t(panel_bytes_of(format, s.k)));  // padding stays zero
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
    uint8_t* halves = panel + L::superblock_at(column / kGroup);
    std::memcpy(halves, block.d, sizeof block.d);
    std::memcpy(halves + sizeof block.d, block.e, sizeof block.e);
    for (int n = 0; n < kLanes; n++) {
      for (int64_t k = 0; k < count; k++) {
        const int64_t group = k / kAffineGroup, q = column / kAffineGroup + group;
        panel[L::scale_at(q, n)] = block.s[group][n];
        panel[L::scale_at(q, n) + 2] = block.t[group][n];
        L::write_unit(panel, q, int(k % kAffineGroup), n, block.u[k][n]);
      }
    }
  }
};

constexpr Packer kMinimaPackers[] = {
    {INFENG_WEIGHT_INT4_A256, AffinePacker<256>::pack, {}, nullptr, nullptr, &AffinePacker<256>::kMinima},
    {INFENG_WEIGHT_INT4_A128, AffinePacker<128>::pack, {}, nullptr, nullptr, &AffinePacker<128>::kMinima},
};

}  // namespace

std::span<const Packer> minima_packers() { return kMinimaPackers; }

}  // namespace infeng
