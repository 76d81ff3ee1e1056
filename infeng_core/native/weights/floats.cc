// f32 and bf16: weights as they are, or rounded to the nearest bf16, ties to even.
#include <infeng/extension/half.h>

#include <cstring>

#include "error.h"
#include "weights/formats.h"

namespace infeng {
namespace {

void pack_f32(const WeightFormat&, const Source& s, int64_t row, uint8_t* out) {
  for (int64_t column = 0; column < s.k; column += kGroup) {
    Group x;
    load_group(s, row, column, x);
    std::memcpy(out + column * sizeof x[0], x, sizeof x);
  }
}

void unpack_f32(const void* panel, int64_t g, Group w, int8_t (*)[kLanes], float (*)[kLanes]) {
  std::memcpy(w, static_cast<const Group*>(panel) + g, sizeof(Group));
}

using Pairs = uint16_t[kGroup / 2][kLanes][2];

void pack_bf16(const WeightFormat&, const Source& s, int64_t row, uint8_t* out) {
  for (int64_t column = 0; column < s.k; column += kGroup) {
    Group x;
    Pairs pairs;
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

void unpack_bf16(const void* panel, int64_t g, Group w, int8_t (*)[kLanes], float (*)[kLanes]) {
  Pairs pairs;
  std::memcpy(pairs, static_cast<const Pairs*>(panel) + g, sizeof pairs);
  for (int k = 0; k < kGroup; k++) {
    for (int n = 0; n < kLanes; n++) w[k][n] = f32_from_bf16(pairs[k / 2][n][k % 2]);
  }
}

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

int64_t f32_bytes(int64_t k) { return k * kPanel * 4; }
int64_t bf16_bytes(int64_t k) { return k * kPanel * 2; }

constexpr infeng_format described(uint32_t number, const char* name, int64_t (*bytes)(int64_t),
                                  decltype(infeng_format::unpack) unpack) {
  return {sizeof(infeng_format), number, name, INFENG_ACT_F32, 0, bytes, nullptr, unpack};
}

constexpr WeightFormat kFloatFormats[] = {
    {described(INFENG_WEIGHT_F32, "f32", f32_bytes, unpack_f32), {}, pack_f32, nullptr, check_f32},
    {described(INFENG_WEIGHT_BF16, "bf16", bf16_bytes, unpack_bf16), {}, pack_bf16, nullptr, check_bf16},
};

}  // namespace

std::span<const WeightFormat> float_formats() { return kFloatFormats; }

}  // namespace infeng
