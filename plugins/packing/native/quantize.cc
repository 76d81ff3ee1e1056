#include "quantize.h"

#include <infeng/extension/half.h>

#include <cmath>
#include <cstring>

namespace infeng {
namespace {

// Divisors d of the value e of largest magnitude; e / d is a candidate scale. -8 uses the whole range of q; 7 and -7.5
// keep e exact but use less of the range; the others clip e in favour of the rest of the group.
constexpr float kDivisors[] = {-8.0f, -7.5f, -8.5f, -9.0f, -9.5f, 7.0f};

struct Fit {
  float error[kLanes];  // sum of (x - scale * q)^2
  float xq[kLanes];     // sum of x * q
  float qq[kLanes];     // sum of q^2
};

INFENG_CLONED void evaluate(GroupInputs x, int count, const float scale[kLanes], const float inverse[kLanes],
                            Fit* fit) {
  float error[kLanes] = {}, xq[kLanes] = {}, qq[kLanes] = {};
  for (int k = 0; k < count; k++) {
    for (int n = 0; n < kLanes; n++) {
      const float q = round_even(clamped(x[k][n] * inverse[n], -8.0f, 7.0f));
      const float difference = x[k][n] - scale[n] * q;
      error[n] += difference * difference;
      xq[n] += x[k][n] * q;
      qq[n] += q * q;
    }
  }
  std::memcpy(fit->error, error, sizeof error);
  std::memcpy(fit->xq, xq, sizeof xq);
  std::memcpy(fit->qq, qq, sizeof qq);
}

INFENG_CLONED void assign(GroupInputs x, int count, const float inverse[kLanes], float low, float high,
                          GroupIntegers q) {
  for (int k = 0; k < count; k++) {
    for (int n = 0; n < kLanes; n++) q[k][n] = int8_t(round_even(clamped(x[k][n] * inverse[n], low, high)));
  }
}

// The value of largest magnitude with its sign; the first of equals.
INFENG_CLONED void extremes(GroupInputs x, int count, float extreme[kLanes]) {
  for (int n = 0; n < kLanes; n++) extreme[n] = 0.0f;
  for (int k = 0; k < count; k++) {
    for (int n = 0; n < kLanes; n++) extreme[n] = std::fabs(x[k][n]) > std::fabs(extreme[n]) ? x[k][n] : extreme[n];
  }
}

// The best fit of each output so far; the first of equal errors stays.
struct Best {
  uint16_t half[kLanes] = {};
  float inverse[kLanes] = {};
  Fit fit;
  bool found[kLanes] = {};

  void consider(GroupInputs x, int count, const float wanted[kLanes], const bool usable[kLanes]) {
    uint16_t rounded[kLanes];
    float scale[kLanes], reciprocal[kLanes];
    for (int n = 0; n < kLanes; n++) {
      rounded[n] = f16_from_f32(wanted[n]);
      const bool fits = !is_infinite(rounded[n]);
      scale[n] = fits ? f32_from_f16(rounded[n]) : 0.0f;
      reciprocal[n] = scale[n] == 0.0f ? 0.0f : 1.0f / scale[n];
    }
    Fit fresh;
    evaluate(x, count, scale, reciprocal, &fresh);
    for (int n = 0; n < kLanes; n++) {
      const bool fits = !is_infinite(rounded[n]);
      if (!usable[n] || !fits || (found[n] && !(fresh.error[n] < fit.error[n]))) continue;
      found[n] = true;
      half[n] = scale[n] == 0.0f ? uint16_t(0) : rounded[n];
      inverse[n] = reciprocal[n];
      fit.error[n] = fresh.error[n];
      fit.xq[n] = fresh.xq[n];
      fit.qq[n] = fresh.qq[n];
    }
  }
};

}  // namespace

uint32_t quantize_int4(GroupInputs x, int count, GroupIntegers q, uint16_t scale[kLanes]) {
  float extreme[kLanes], wanted[kLanes];
  bool usable[kLanes];
  extremes(x, count, extreme);
  uint32_t overflow = 0;
  for (int n = 0; n < kLanes; n++) overflow |= uint32_t(is_infinite(f16_from_f32(extreme[n] / kDivisors[0]))) << n;
  Best best;
  for (const float divisor : kDivisors) {
    for (int n = 0; n < kLanes; n++) {
      wanted[n] = extreme[n] / divisor;
      usable[n] = true;
    }
    best.consider(x, count, wanted, usable);
  }
  for (int n = 0; n < kLanes; n++) {  // the least-squares scale for the chosen integers
    usable[n] = best.found[n] && best.fit.qq[n] > 0.0f;
    wanted[n] = usable[n] ? best.fit.xq[n] / best.fit.qq[n] : 0.0f;
  }
  best.consider(x, count, wanted, usable);
  for (int n = 0; n < kLanes; n++) scale[n] = best.half[n];
  assign(x, count, best.inverse, -8.0f, 7.0f, q);
  return overflow;
}

uint32_t quantize_int8_group(GroupInputs x, int count, GroupIntegers q, uint16_t scale[kLanes]) {
  float extreme[kLanes], inverse[kLanes];
  extremes(x, count, extreme);
  uint32_t overflow = 0;
  for (int n = 0; n < kLanes; n++) {
    scale[n] = f16_from_f32(std::fabs(extreme[n]) / 127.0f);
    const bool fits = !is_infinite(scale[n]);
    overflow |= uint32_t(!fits) << n;
    const float rounded = fits ? f32_from_f16(scale[n]) : 0.0f;
    inverse[n] = rounded == 0.0f ? 0.0f : 1.0f / rounded;
  }
  assign(x, count, inverse, -127.0f, 127.0f, q);
  return overflow;
}

float int8_scale(float amax) { return amax < kSmallest ? 0.0f : amax / 127.0f; }

void quantize_int8(GroupInputs x, int count, const float amax[kLanes], GroupIntegers q) {
  float inverse[kLanes];
  for (int n = 0; n < kLanes; n++) inverse[n] = amax[n] < kSmallest ? 0.0f : 127.0f / amax[n];
  assign(x, count, inverse, -127.0f, 127.0f, q);
}

}  // namespace infeng
