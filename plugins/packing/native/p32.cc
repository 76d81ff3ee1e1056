// int4-p32, int5-p32 and int6-p32: w = d[n] * s (u - z), with integers s and z for every 32 inputs of an output.
#include <infeng/extension/error.h>
#include <infeng/extension/panel_p32.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "packers.h"
#include "quantize_p32.h"

namespace infeng {
namespace {

// --------------------------------------------------------------------------------------- from units to panels, back
// ---

template <int kBits>
struct P32Units {
  static void write_units(const Units& units, int64_t row, uint8_t* panel) {
    const int rows = int(std::min<int64_t>(kLanes, units.n - row));
    float d[kLanes] = {};
    for (int n = 0; n < rows; n++) {
      d[n] = units.d[row + n];
      if (!std::isfinite(d[n])) fail("not_finite", "row ", row + n, ": the scale is ", d[n]);
    }
    std::memcpy(panel, d, sizeof d);
    for (int64_t q = 0; q * kSubGroup < units.k; q++) {
      SubScale sub;
      std::fill_n(sub.s, kLanes, 1.0f);
      std::fill_n(sub.z, kLanes, 0.0f);
      uint8_t u[kSubGroup][kLanes] = {};
      for (int n = 0; n < rows; n++) load_lane(units, row + n, q, n, &sub, u);
      L::write(panel, q, sub, u);
    }
  }

  static void read_units(const uint8_t* panel, int64_t k, const UnitRows& out) {
    const int64_t groups = (k + kSubGroup - 1) / kSubGroup;
    std::memcpy(out.d, panel, kLanes * sizeof *out.d);
    for (int64_t n = 0; n < kLanes; n++) {
      for (int64_t q = 0; q < groups; q++) {
        const auto [s, z] = L::scale_of(panel, q, int(n));
        out.s[n * groups + q] = int8_t(s);
        out.z[n * groups + q] = int8_t(z);
        const int64_t count = std::min<int64_t>(kSubGroup, k - q * kSubGroup);
        for (int64_t i = 0; i < count; i++) {
          out.u[n * k + q * kSubGroup + i] = int8_t(L::unit_of(panel, q, int(i), int(n)));
        }
      }
    }
  }

  static constexpr UnitPacker kUnits{kSubGroup, write_units, read_units};

 private:
  using L = P32Layout<kBits>;

  // Loads the units of 32 inputs of one output; inputs beyond the last one are z, 0 steps.
  static void load_lane(const Units& units, int64_t row, int64_t q, int n, SubScale* sub, Quarter u) {
    const int64_t at = row * kUnits.groups(units.k) + q, column = q * kSubGroup;
    const int s = units.s[at], z = units.z[at];
    if (s < 1 || s > L::kGrid.most_scale()) {
      fail("out_of_range", "row ", row, ", columns from ", column, ": sub-scale ", s, " is outside of 1 to ",
           L::kGrid.most_scale());
    }
    if (z < 0 || z > L::kGrid.most_unit()) {
      fail("out_of_range", "row ", row, ", columns from ", column, ": zero point ", z, " is outside of 0 to ",
           L::kGrid.most_unit());
    }
    sub->s[n] = float(s);
    sub->z[n] = float(z);
    for (int i = 0; i < kSubGroup; i++) {
      const int unit = column + i < units.k ? units.u[row * units.k + column + i] : z;
      if (unit < 0 || unit > L::kGrid.most_unit()) {
        fail("out_of_range", "row ", row, ", column ", column + i, ": code ", unit, " is outside of 0 to ",
             L::kGrid.most_unit());
      }
      require_steps(s * (unit - z), row, column + i);
      u[i][n] = uint8_t(unit);
    }
  }

  static void require_steps(int steps, int64_t row, int64_t column) {
    if (steps >= kLowest && steps <= kHighest) return;
    fail("out_of_range", "row ", row, ", column ", column, ": the weight is ", steps, " steps, outside of ", kLowest,
         " to ", kHighest);
  }
};

// ------------------------------------------------------------------------------------------- from floats to panels ---

// The inputs of 16 rows, in groups of 64.
class Rows {
 public:
  Rows(const Source& s, int64_t row) : values_(size_t((s.k + kGroup - 1) / kGroup)) {
    for (size_t g = 0; g < values_.size(); g++) load_group(s, row, int64_t(g) * kGroup, values_[g].x);
  }
  int64_t quarters() const { return int64_t(values_.size()) * 2; }
  GroupInputs at(int64_t q) { return values_[size_t(q / 2)].x + q % 2 * kSubGroup; }

  void amax(float out[kLanes]) const {
    std::fill_n(out, kLanes, 0.0f);
    for (const Values& v : values_) {
      for (const auto& column : v.x) {
        for (int n = 0; n < kLanes; n++) out[n] = std::max(out[n], std::abs(column[n]));
      }
    }
  }

 private:
  struct Values {
    Group x;
  };
  std::vector<Values> values_;
};

// Chooses for each row the candidate scale with the least error, and the sub-scales found under it.
void choose(SubGrid grid, Rows& rows, float d[kLanes], std::vector<SubScale>& best) {
  float amax[kLanes], scale[kRowScaleCandidates][kLanes];
  double total[kRowScaleCandidates][kLanes] = {};
  std::vector<std::array<SubScale, kRowScaleCandidates>> tried(best.size());
  rows.amax(amax);
  for (int c = 0; c < kRowScaleCandidates; c++) row_scales(amax, c, scale[c]);
  for (size_t q = 0; q < best.size(); q++) {
    for (int c = 0; c < kRowScaleCandidates; c++) {
      float error[kLanes];
      search_sub_scale(grid, rows.at(int64_t(q)), scale[c], &tried[q][size_t(c)], error);
      for (int n = 0; n < kLanes; n++) total[c][n] += double(error[n]);
    }
  }
  size_t least[kLanes] = {};
  for (int n = 0; n < kLanes; n++) {
    for (size_t c = 1; c < kRowScaleCandidates; c++) least[n] = total[c][n] < total[least[n]][n] ? c : least[n];
    d[n] = scale[least[n]][n];
  }
  for (size_t q = 0; q < best.size(); q++) {
    for (int n = 0; n < kLanes; n++) {
      const SubScale& won = tried[q][least[n]];
      best[q].s[n] = won.s[n], best[q].z[n] = won.z[n];
    }
  }
}

// Replaces each row's scale by the least-squares fit to the chosen integers.
void refit(SubGrid grid, Rows& rows, const std::vector<SubScale>& sub, float d[kLanes]) {
  double xw[kLanes] = {}, ww[kLanes] = {};
  for (int64_t q = 0; q < rows.quarters(); q++) {
    uint8_t u[kSubGroup][kLanes];
    int8_t w[kSubGroup][kLanes];
    const GroupInputs x = rows.at(q);
    assign_units(grid, x, d, sub[size_t(q)], u, w);
    add_products(x, w, xw, ww);
  }
  for (int n = 0; n < kLanes; n++) {
    if (d[n] != 0.0f && xw[n] > 0.0) d[n] = float(xw[n] / ww[n]);
  }
}

template <int kBits>
void pack(const infeng_format& format, const Source& s, int64_t row, uint8_t* panel) {
  std::memset(panel, 0, size_t(panel_bytes_of(format, s.k)));  // padding stays zero
  Rows rows(s, row);
  float d[kLanes];
  std::vector<SubScale> sub(size_t(rows.quarters()));
  choose(P32Layout<kBits>::kGrid, rows, d, sub);
  refit(P32Layout<kBits>::kGrid, rows, sub, d);
  std::memcpy(panel, d, sizeof d);
  for (int64_t q = 0; q < rows.quarters(); q++) {
    uint8_t u[kSubGroup][kLanes];
    int8_t w[kSubGroup][kLanes];
    assign_units(P32Layout<kBits>::kGrid, rows.at(q), d, sub[size_t(q)], u, w);
    P32Layout<kBits>::write(panel, q, sub[size_t(q)], u);
  }
}

template <int kBits>
constexpr Packer described_p32(uint32_t number) {
  return {number, pack<kBits>, {}, nullptr, &P32Units<kBits>::kUnits};
}

constexpr Packer kUnitPackers[] = {
    described_p32<4>(INFENG_WEIGHT_INT4_P32),
    described_p32<5>(INFENG_WEIGHT_INT5_P32),
    described_p32<6>(INFENG_WEIGHT_INT6_P32),
};

}  // namespace

std::span<const Packer> unit_packers() { return kUnitPackers; }

}  // namespace infeng
