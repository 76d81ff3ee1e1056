// f32 and bf16: weights as they are, or rounded to the nearest bf16, ties to even.
#include <infeng/extension/error.h>
#include <infeng/extension/panel_floats.h>

#include "packers.h"

namespace infeng {
namespace {

void pack_f32(const infeng_format&, const Source& s, int64_t row, uint8_t* out) {
  for (int64_t column = 0; column < s.k; column += kGroup) {
    Group x;
    load_group(s, row, column, x);
    std::memcpy(out + column * sizeof x[0], x, sizeof x);
  }
}

void pack_bf16(const infeng_format&, const Source& s, int64_t row, uint8_t* out) {
  for (int64_t column = 0; column < s.k; column += kGroup) {
    Group x;
    Bf16Layout::Pairs pairs;
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

constexpr Packer kFloatPackers[] = {{INFENG_WEIGHT_F32, pack_f32}, {INFENG_WEIGHT_BF16, pack_bf16}};

}  // namespace

std::span<const Packer> float_packers() { return kFloatPackers; }

}  // namespace infeng
