// int8-row, int8-g32, int4-g64 and int4-g32.
#include <infeng/extension/error.h>
#include <infeng/extension/panel_integers.h>

#include <cmath>

#include "weights/formats.h"

namespace infeng {
namespace {

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

void check_scales(const uint8_t* panel, int64_t, int64_t row) {
  float scale[kLanes];
  std::memcpy(scale, panel, sizeof scale);
  for (int n = 0; n < kLanes; n++) {
    if (!std::isfinite(scale[n])) fail("not_finite", "row ", row + n, ": the scale is ", scale[n]);
  }
}

// Checks panels of superblocks of two groups of kSize inputs.
template <class Layout, int kSize>
void check_superblocks(const uint8_t* panel, int64_t k, int64_t row) {
  for (int64_t s = 0; 2 * s * kSize < k; s++) {
    check_halves(panel + s * Layout::kSuperblock, kSize, row, 2 * s * kSize);
  }
}

template <class Layout>
constexpr WeightFormat format(uint32_t number, const char* name, uint32_t group,
                              void (*check)(const uint8_t*, int64_t, int64_t)) {
  return {.abi = described<Layout>(number, name, INFENG_ACT_INT8_G64, group), .grid = Layout::kGrid, .check = check};
}

constexpr WeightFormat kIntegerFormats[] = {
    format<Int8Row>(INFENG_WEIGHT_INT8_ROW, "int8-row", 64, check_scales),
    format<Int4<64>>(INFENG_WEIGHT_INT4_G64, "int4-g64", 64, check_superblocks<Int4<64>, 64>),
    format<Int4<32>>(INFENG_WEIGHT_INT4_G32, "int4-g32", 32, check_superblocks<Int4<32>, 32>),
    format<Int8G32>(INFENG_WEIGHT_INT8_G32, "int8-g32", 32, check_superblocks<Int8G32, 32>),
};

}  // namespace

std::span<const WeightFormat> integer_formats() { return kIntegerFormats; }

}  // namespace infeng
