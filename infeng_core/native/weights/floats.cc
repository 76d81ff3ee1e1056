// f32 and bf16.
#include <infeng/extension/error.h>
#include <infeng/extension/panel_floats.h>

#include "weights/formats.h"

namespace infeng {
namespace {

// Checks a panel of a file for NaN and infinity; a line holds kPerLine values of each output.
template <class Bits, Bits kExponent>
void check(const uint8_t* panel, int64_t k, int64_t row) {
  constexpr int kPerLine = 4 / int(sizeof(Bits));
  using Line = Bits[kLanes][kPerLine];
  for (int64_t column = 0; column < k; column += kPerLine) {
    Line line;
    std::memcpy(line, panel + column / kPerLine * int64_t(sizeof line), sizeof line);
    unsigned odd = 0;
    for (const auto& values : line) {
      for (const Bits value : values) odd |= unsigned((value & kExponent) == kExponent);
    }
    for (int n = 0; odd && n < kLanes; n++) {
      for (int i = 0; i < kPerLine; i++) {
        if ((line[n][i] & kExponent) != kExponent) continue;
        fail("not_finite", "row ", row + n, ", column ", column + i, ": the weight is NaN or infinite");
      }
    }
  }
}
constexpr auto check_f32 = check<uint32_t, 0x7f800000u>;
constexpr auto check_bf16 = check<uint16_t, uint16_t{0x7f80}>;

constexpr WeightFormat kFloatFormats[] = {
    {.abi = described<F32Layout>(INFENG_WEIGHT_F32, "f32", INFENG_ACT_F32, 0), .grid = {}, .check = check_f32},
    {.abi = described<Bf16Layout>(INFENG_WEIGHT_BF16, "bf16", INFENG_ACT_F32, 0), .grid = {}, .check = check_bf16},
};

}  // namespace

std::span<const WeightFormat> float_formats() { return kFloatFormats; }

}  // namespace infeng
