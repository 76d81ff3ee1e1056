// int4-p32, int5-p32 and int6-p32.
#include <infeng/extension/error.h>
#include <infeng/extension/panel_p32.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "weights/formats.h"

namespace infeng {
namespace {

void require_steps(int steps, int64_t row, int64_t column) {
  if (steps >= kLowest && steps <= kHighest) return;
  fail("out_of_range", "row ", row, ", column ", column, ": the weight is ", steps, " steps, outside of ", kLowest,
       " to ", kHighest);
}

template <int kBits>
struct P32Check {
  using L = P32Layout<kBits>;

  // Checks a panel of a file: every s and z is valid, but s (u - z) may not fit in 8 bits.
  static void check(const uint8_t* panel, int64_t k, int64_t row) {
    for (int n = 0; n < kLanes; n++) {
      float d;
      std::memcpy(&d, panel + n * sizeof d, sizeof d);
      if (!std::isfinite(d)) fail("not_finite", "row ", row + n, ": the scale is ", d);
    }
    for (int64_t q = 0; q * kSubGroup < k; q++) {
      for (int n = 0; n < kLanes; n++) check_output(panel, q, n, row);
    }
  }

 private:
  // The range of units under one byte of (s, z).
  struct Allowed {
    int low = 0;
    int high = L::kGrid.most_unit();
  };
  static constexpr std::array<Allowed, 256> allowed() {
    std::array<Allowed, 256> all;
    for (int byte = 0; byte < 256; byte++) {
      const int s = (byte & (L::kGrid.most_scale() - 1)) + 1, z = byte >> (8 - kBits);
      all[size_t(byte)] = {std::max(0, z + kLowest / s), std::min(L::kGrid.most_unit(), z + kHighest / s)};
    }
    return all;
  }
  static constexpr std::array<Allowed, 256> kAllowed = allowed();

  static void check_output(const uint8_t* panel, int64_t q, int n, int64_t row) {
    const Allowed units = kAllowed[panel[L::scale_at(q, n)]];
    if (units.low == 0 && units.high == L::kGrid.most_unit()) return;
    for (int k = 0; k < kSubGroup; k++) {
      const int u = L::unit_of(panel, q, k, n);
      if (u >= units.low && u <= units.high) continue;
      const auto [s, z] = L::scale_of(panel, q, n);
      require_steps(s * (u - z), row + n, q * kSubGroup + k);
    }
  }
};

template <int kBits>
constexpr WeightFormat described_p32(uint32_t number, const char* name) {
  using L = P32Layout<kBits>;
  return {.abi = described<L>(number, name, INFENG_ACT_INT8_G64, 64),
          .grid = {0, kLowest, kHighest, false},
          .check = P32Check<kBits>::check,
          .sub = {kSubGroup, L::kGrid.most_scale(), L::kGrid.most_unit()}};
}

constexpr WeightFormat kP32Formats[] = {
    described_p32<4>(INFENG_WEIGHT_INT4_P32, "int4-p32"),
    described_p32<5>(INFENG_WEIGHT_INT5_P32, "int5-p32"),
    described_p32<6>(INFENG_WEIGHT_INT6_P32, "int6-p32"),
};

}  // namespace

std::span<const WeightFormat> sub_scaled_formats() { return kP32Formats; }

}  // namespace infeng
