// int4-p32, int5-p32 and int6-p32: w = d[n] * s (u - z), with integers s and z for every 32 inputs of an output.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "error.h"
#include "weights/arena.h"
#include "weights/formats.h"
#include "weights/quantize_p32.h"
#include "weights/weight.h"

namespace infeng {
namespace {

using Quarter = uint8_t (*)[kLanes];  // the units of 32 inputs

// ----------------------------------------------------------------------------------------------- layout of a panel ---

template <int kBits>
struct P32Layout {
  static constexpr SubGrid kGrid{kBits};
  static constexpr int64_t kSuperblock = (1 + 4 * kBits) * kLine;  // 128 inputs

  static int64_t bytes(int64_t k) { return (1 + (k + 127) / 128) * kLine + 2 * kBits * k; }

  // Offsets of inputs [32 q, 32 q + 32).
  static int64_t scale_at(int64_t q, int n) { return kLine + q / 4 * kSuperblock + 4 * n + 2 * (q % 2) + q % 4 / 2; }
  static int64_t lines_at(int64_t q) { return 2 * kLine + q / 4 * kSuperblock + q % 4 * (kBits * kLine); }

  // The line behind the nibbles, and the shift in its bytes, of the upper bits of line `l` of eight.
  static int upper_line(int l) { return kBits == 5 ? 4 : 4 + l / 4; }
  static int upper_shift(int l) { return kBits == 5 ? l : 2 * (l % 4); }

  static void write(uint8_t* panel, int64_t q, const SubScale& sub, Quarter u) {
    for (int n = 0; n < kLanes; n++) {
      panel[scale_at(q, n)] = uint8_t((int(sub.s[n]) - 1) | int(sub.z[n]) << (8 - kBits));
    }
    uint8_t* lines = panel + lines_at(q);
    for (int k = 0; k < kSubGroup / 2; k++) {
      const uint8_t *low = u[k], *high = u[k + kSubGroup / 2];
      uint8_t* line = lines + k / 4 * kLine + k % 4;
      for (int n = 0; n < kLanes; n++) line[4 * n] = uint8_t((low[n] & 15) | high[n] << 4);
    }
    if (kBits == 4) return;
    for (int k = 0; k < kSubGroup; k++) {
      uint8_t* line = lines + upper_line(k / 4) * kLine + k % 4;
      for (int n = 0; n < kLanes; n++) line[4 * n] |= uint8_t(u[k][n] >> 4 << upper_shift(k / 4));
    }
  }

  // Returns (s, z) of an output.
  static std::pair<int, int> scale_of(const uint8_t* panel, int64_t q, int n) {
    const int byte = panel[scale_at(q, n)];
    return {(byte & (kGrid.most_scale() - 1)) + 1, byte >> (8 - kBits)};
  }
  static int unit_of(const uint8_t* panel, int64_t q, int k, int n) {
    const uint8_t* lines = panel + lines_at(q);
    const int l = k / 4, at = 4 * n + k % 4;
    int u = lines[l % 4 * kLine + at] >> (l < 4 ? 0 : 4) & 15;
    if (kBits > 4) u |= (lines[upper_line(l) * kLine + at] >> upper_shift(l) & ((1 << (kBits - 4)) - 1)) << 4;
    return u;
  }

  static void read(const void* data, int64_t g, Group, Integers w, Scales scale) {
    const auto* panel = static_cast<const uint8_t*>(data);
    std::memcpy(scale[0], panel, sizeof scale[0]);
    for (int n = 0; n < kLanes; n++) {
      for (int h = 0; h < kGroup / kSubGroup; h++) {
        const int64_t q = g * 2 + h;
        const auto [s, z] = scale_of(panel, q, n);
        for (int k = 0; k < kSubGroup; k++) w[h * kSubGroup + k][n] = int8_t(s * (unit_of(panel, q, k, n) - z));
      }
    }
  }

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
      write(panel, q, sub, u);
    }
  }

  static void read_units(const uint8_t* panel, int64_t k, const UnitRows& out) {
    const int64_t groups = (k + kSubGroup - 1) / kSubGroup;
    std::memcpy(out.d, panel, kLanes * sizeof *out.d);
    for (int64_t n = 0; n < kLanes; n++) {
      for (int64_t q = 0; q < groups; q++) {
        const auto [s, z] = scale_of(panel, q, int(n));
        out.s[n * groups + q] = int8_t(s);
        out.z[n * groups + q] = int8_t(z);
        const int64_t count = std::min<int64_t>(kSubGroup, k - q * kSubGroup);
        for (int64_t i = 0; i < count; i++) {
          out.u[n * k + q * kSubGroup + i] = int8_t(unit_of(panel, q, int(i), int(n)));
        }
      }
    }
  }

  static constexpr SubScaling kScaling{kSubGroup, kGrid.most_scale(), kGrid.most_unit(), write_units, read_units};

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
  // Loads the units of 32 inputs of one output; inputs beyond the last one are z, 0 steps.
  static void load_lane(const Units& units, int64_t row, int64_t q, int n, SubScale* sub, Quarter u) {
    const int64_t at = row * kScaling.groups(units.k) + q, column = q * kSubGroup;
    const int s = units.s[at], z = units.z[at];
    if (s < 1 || s > kGrid.most_scale()) {
      fail("out_of_range", "row ", row, ", columns from ", column, ": sub-scale ", s, " is outside of 1 to ",
           kGrid.most_scale());
    }
    if (z < 0 || z > kGrid.most_unit()) {
      fail("out_of_range", "row ", row, ", columns from ", column, ": zero point ", z, " is outside of 0 to ",
           kGrid.most_unit());
    }
    sub->s[n] = float(s);
    sub->z[n] = float(z);
    for (int i = 0; i < kSubGroup; i++) {
      const int unit = column + i < units.k ? units.u[row * units.k + column + i] : z;
      if (unit < 0 || unit > kGrid.most_unit()) {
        fail("out_of_range", "row ", row, ", column ", column + i, ": code ", unit, " is outside of 0 to ",
             kGrid.most_unit());
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

  // The range of units under one byte of (s, z).
  struct Allowed {
    int low = 0;
    int high = kGrid.most_unit();
  };
  static constexpr std::array<Allowed, 256> allowed() {
    std::array<Allowed, 256> all;
    for (int byte = 0; byte < 256; byte++) {
      const int s = (byte & (kGrid.most_scale() - 1)) + 1, z = byte >> (8 - kBits);
      all[size_t(byte)] = {std::max(0, z + kLowest / s), std::min(kGrid.most_unit(), z + kHighest / s)};
    }
    return all;
  }
  static constexpr std::array<Allowed, 256> kAllowed = allowed();

  static void check_output(const uint8_t* panel, int64_t q, int n, int64_t row) {
    const Allowed units = kAllowed[panel[scale_at(q, n)]];
    if (units.low == 0 && units.high == kGrid.most_unit()) return;
    for (int k = 0; k < kSubGroup; k++) {
      const int u = unit_of(panel, q, k, n);
      if (u >= units.low && u <= units.high) continue;
      const auto [s, z] = scale_of(panel, q, n);
      require_steps(s * (u - z), row + n, q * kSubGroup + k);
    }
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
void pack(const WeightFormat& format, const Source& s, int64_t row, uint8_t* panel) {
  std::memset(panel, 0, size_t(panel_bytes_of(format.abi.number, s.k)));  // padding stays zero
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
constexpr WeightFormat described_p32(uint32_t number, const char* name) {
  using L = P32Layout<kBits>;
  return {{sizeof(infeng_format), number, name, INFENG_ACT_INT8_G64, 64, L::bytes, nullptr, L::read},
          {0, kLowest, kHighest, false},
          pack<kBits>,
          nullptr,
          L::check,
          &L::kScaling};
}

constexpr WeightFormat kP32Formats[] = {
    described_p32<4>(INFENG_WEIGHT_INT4_P32, "int4-p32"),
    described_p32<5>(INFENG_WEIGHT_INT5_P32, "int5-p32"),
    described_p32<6>(INFENG_WEIGHT_INT6_P32, "int6-p32"),
};

}  // namespace

std::span<const WeightFormat> sub_scaled_formats() { return kP32Formats; }

}  // namespace infeng
