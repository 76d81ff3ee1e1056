#include "source.h"

#include <infeng/extension/error.h>
#include <infeng/extension/half.h>

#include <algorithm>
#include <bit>
#include <cstring>

namespace infeng {
namespace {

template <class Raw, class Widen>
INFENG_INLINE uint32_t widen_row(const char* from, int count, int lane, Group x, uint32_t exponent, Widen widen) {
  uint32_t bad = 0;
  for (int i = 0; i < count; i++) {
    Raw raw;
    std::memcpy(&raw, from + i * sizeof(Raw), sizeof raw);
    bad |= (raw & exponent) == exponent;
    x[i][lane] = widen(raw);
  }
  return bad;
}

[[noreturn]] void throw_not_finite(const Source& s, int64_t row, int64_t column) {
  for (;; column++) {
    const char* from = s.data + row * s.row_bytes + column * (s.element == Element::f32 ? 4 : 2);
    uint32_t raw = 0;
    std::memcpy(&raw, from, s.element == Element::f32 ? 4 : 2);
    const uint32_t exponent = s.element == Element::f32 ? 0x7f800000u : s.element == Element::f16 ? 0x7c00u : 0x7f80u;
    if ((raw & exponent) == exponent) break;
  }
  fail("not_finite", "row ", row, ", column ", column, " is NaN or infinite");
}

}  // namespace

void load_group(const Source& s, int64_t row, int64_t column, Group x) {
  std::memset(x, 0, sizeof(Group));
  const int count = int(std::min<int64_t>(kGroup, s.k - column));
  const int lanes = int(std::min<int64_t>(kLanes, s.n - row));
  for (int lane = 0; lane < lanes; lane++) {
    const char* from = s.data + (row + lane) * s.row_bytes + column * (s.element == Element::f32 ? 4 : 2);
    uint32_t bad = 0;
    switch (s.element) {
      case Element::f32:
        bad =
            widen_row<uint32_t>(from, count, lane, x, 0x7f800000u, [](uint32_t r) { return std::bit_cast<float>(r); });
        break;
      case Element::f16:
        bad = widen_row<uint16_t>(from, count, lane, x, 0x7c00u, [](uint16_t r) { return f32_from_f16(r); });
        break;
      case Element::bf16:
        bad = widen_row<uint16_t>(from, count, lane, x, 0x7f80u, [](uint16_t r) { return f32_from_bf16(r); });
        break;
    }
    if (bad) throw_not_finite(s, row + lane, column);
  }
}

}  // namespace infeng
