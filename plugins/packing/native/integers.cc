// int8-row, int8-g32, int4-g64 and int4-g32: integers with one scale per output, or per group of its inputs.
#include <infeng/extension/error.h>
#include <infeng/extension/panel_integers.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "packers.h"
#include "quantize.h"

namespace infeng {
namespace {

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

template <class Layout, class Rule>
void pack(const infeng_format& format, const Source& s, int64_t row, uint8_t* panel) {
  std::memset(panel, 0, size_t(panel_bytes_of(format, s.k)));  // padding stays zero
  const Rule rule(s, row);
  for (int64_t g = 0; g * kGroup < s.k; g++) {
    Group x;
    int8_t q[kGroup][kLanes];
    float scale[2][kLanes];
    load_group(s, row, g * kGroup, x);
    rule.quantize(x, row, g * kGroup, q, scale);
    Layout::write(panel, g, q, scale);
  }
}

template <class Layout, class Rule>
constexpr Packer described(uint32_t number) {
  return {number, pack<Layout, Rule>, Layout::kGrid, Layout::write};
}

constexpr Packer kIntegerPackers[] = {
    described<Int8Row, ByRow>(INFENG_WEIGHT_INT8_ROW),
    described<Int4<64>, ByGroup<64, quantize_int4>>(INFENG_WEIGHT_INT4_G64),
    described<Int4<32>, ByGroup<32, quantize_int4>>(INFENG_WEIGHT_INT4_G32),
    described<Int8G32, ByGroup<32, quantize_int8_group>>(INFENG_WEIGHT_INT8_G32),
};

}  // namespace

std::span<const Packer> integer_packers() { return kIntegerPackers; }

}  // namespace infeng
