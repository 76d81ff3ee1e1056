// int4-a256 and int4-a128.
#include <infeng/extension/error.h>
#include <infeng/extension/panel_affine.h>

#include "weights/formats.h"

namespace infeng {
namespace {

// Checks a panel of a file: every byte is valid, except fp16 scales that are not finite.
template <int kSuper>
void check_affine(const uint8_t* panel, int64_t k, int64_t row) {
  using L = AffineLayout<kSuper>;
  for (int64_t g = 0; g * kGroup < k; g += L::kBlocks) {
    const uint8_t* halves = panel + L::superblock_at(g);
    for (int n = 0; n < 2 * kLanes; n++) {
      if (!is_infinite(L::read_half(halves, n))) continue;
      fail("not_finite", "row ", row + n % kLanes, ", columns from ", g * kGroup, ": the scale of ",
           n < kLanes ? "sub-scales" : "minima", " is NaN or infinite");
    }
  }
}

// `read` returns values like that of a float format, so the ABI's group is 0.
template <int kSuper>
constexpr WeightFormat described_affine(uint32_t number, const char* name) {
  using L = AffineLayout<kSuper>;
  return {.abi = described<L>(number, name, INFENG_ACT_INT8_G64, 0),
          .grid = {0, 0, 15, true},
          .check = check_affine<kSuper>,
          .minima = {kAffineGroup, kSuper}};
}

constexpr WeightFormat kAffineFormats[] = {
    described_affine<256>(INFENG_WEIGHT_INT4_A256, "int4-a256"),
    described_affine<128>(INFENG_WEIGHT_INT4_A128, "int4-a128"),
};

}  // namespace

std::span<const WeightFormat> affine_formats() { return kAffineFormats; }

}  // namespace infeng
