#include "quantize_affine.h"

#include <infeng/extension/clones.h>
#include <infeng/extension/half.h>

#include <cstring>

namespace infeng {
namespace {

// Fractions of a group's range that its grid may span.
constexpr float kSpans[] = {1.0f, 0.93f, 0.86f};

INFENG_INLINE float unit_of(float x, float by, float least) {
  return round_even(clamped((x + least) * by, 0.0f, kMostUnit));
}

INFENG_INLINE float inverse(float step) { return step == 0.0f ? 0.0f : 1.0f / step; }

// A group's step and minimum before they are rounded to bytes: x = step * u - least.
struct AffineSpan {
  float step[kLanes];
  float least[kLanes];
};

// The error of the units under a span, and the sums for the least-squares line through (u, x).
struct AffineFit {
  float error[kLanes];
  float x[kLanes];
  float u[kLanes];
  float xu[kLanes];
  float uu[kLanes];
};

INFENG_CLONED void fit(const float (*x)[kLanes], int count, const AffineSpan& span, AffineFit* out) {
  AffineFit sums = {};
  float by[kLanes];
  for (int n = 0; n < kLanes; n++) by[n] = inverse(span.step[n]);
  for (int k = 0; k < count; k++) {
    for (int n = 0; n < kLanes; n++) {
      const float u = unit_of(x[k][n], by[n], span.least[n]);
      const float difference = x[k][n] - (span.step[n] * u - span.least[n]);
      sums.error[n] += difference * difference;
      sums.x[n] += x[k][n];
      sums.u[n] += u;
      sums.xu[n] += x[k][n] * u;
      sums.uu[n] += u * u;
    }
  }
  *out = sums;
}

INFENG_CLONED void range(const float (*x)[kLanes], int count, float low[kLanes], float high[kLanes]) {
  for (int n = 0; n < kLanes; n++) low[n] = high[n] = 0.0f;
  for (int k = 0; k < count; k++) {
    for (int n = 0; n < kLanes; n++) {
      low[n] = x[k][n] < low[n] ? x[k][n] : low[n];
      high[n] = x[k][n] > high[n] ? x[k][n] : high[n];
    }
  }
}

// The least-squares line through the units of a span; outputs without one keep their span.
AffineSpan line_of(const AffineFit& sums, int count, const AffineSpan& before) {
  AffineSpan line = before;
  for (int n = 0; n < kLanes; n++) {
    const float size = float(count), spread = size * sums.uu[n] - sums.u[n] * sums.u[n];
    if (!(spread > 0.0f)) continue;
    const float step = (size * sums.xu[n] - sums.x[n] * sums.u[n]) / spread;
    const float least = (step * sums.u[n] - sums.x[n]) / size;
    if (!(step > 0.0f)) continue;
    line.step[n] = step;
    line.least[n] = least > 0.0f ? least : 0.0f;
  }
  return line;
}

// Returns the best span; the first of equal errors wins.
AffineSpan search(const float (*x)[kLanes], int count) {
  AffineSpan best = {};
  float low[kLanes], high[kLanes], error[kLanes];
  range(x, count, low, high);
  bool first = true;
  const auto consider = [&](const AffineSpan& span) {
    AffineFit sums;
    fit(x, count, span, &sums);
    for (int n = 0; n < kLanes; n++) {
      if (!first && !(sums.error[n] < error[n])) continue;
      best.step[n] = span.step[n];
      best.least[n] = span.least[n];
      error[n] = sums.error[n];
    }
    first = false;
    return sums;
  };
  for (const float part : kSpans) {
    AffineSpan span;
    for (int n = 0; n < kLanes; n++) {
      span.step[n] = (high[n] - low[n]) * part / kMostUnit;
      span.least[n] = -low[n] * part;
    }
    const AffineSpan line = line_of(consider(span), count, span);
    consider(line_of(consider(line), count, line));
  }
  return best;
}

// The smallest fp16 that is at least `largest` / 255, so that bytes reach at most 255.
uint16_t step_of_bytes(float largest) {
  const float wanted = largest / kMostByte;
  const uint16_t half = f16_from_f32(wanted);
  return !is_infinite(half) && f32_from_f16(half) < wanted ? uint16_t(half + 1) : half;
}

uint8_t byte_of(float value, float step) {
  return step == 0.0f ? uint8_t(0) : uint8_t(round_even(clamped(value / step, 0.0f, kMostByte)));
}

INFENG_CLONED void assign(const float (*x)[kLanes], int count, const AffineSpan& span, uint8_t u[][kLanes]) {
  float by[kLanes];
  for (int n = 0; n < kLanes; n++) by[n] = inverse(span.step[n]);
  for (int k = 0; k < count; k++) {
    for (int n = 0; n < kLanes; n++) u[k][n] = uint8_t(unit_of(x[k][n], by[n], span.least[n]));
  }
}

}  // namespace

uint32_t quantize_affine(const AffineInputs& inputs, AffineBlock* out) {
  AffineSpan spans[kAffineGroups];
  float step[kLanes] = {}, least[kLanes] = {};
  std::memset(out, 0, sizeof *out);
  for (int g = 0; g < inputs.groups(); g++) {
    spans[g] = search(inputs.x + g * kAffineGroup, inputs.size(g));
    for (int n = 0; n < kLanes; n++) {
      step[n] = spans[g].step[n] > step[n] ? spans[g].step[n] : step[n];
      least[n] = spans[g].least[n] > least[n] ? spans[g].least[n] : least[n];
    }
  }
  uint32_t overflow = 0;
  for (int n = 0; n < kLanes; n++) {
    out->d[n] = step_of_bytes(step[n]);
    out->e[n] = step_of_bytes(least[n]);
    if (is_infinite(out->d[n]) || is_infinite(out->e[n])) overflow |= 1u << n;
  }
  if (overflow != 0) return overflow;
  for (int g = 0; g < inputs.groups(); g++) {
    AffineSpan stored;
    for (int n = 0; n < kLanes; n++) {
      const float d = f32_from_f16(out->d[n]), e = f32_from_f16(out->e[n]);
      out->s[g][n] = byte_of(spans[g].step[n], d);
      out->t[g][n] = byte_of(spans[g].least[n], e);
      stored.step[n] = d * float(out->s[g][n]);
      stored.least[n] = e * float(out->t[g][n]);
    }
    assign(inputs.x + g * kAffineGroup, inputs.size(g), stored, out->u + g * kAffineGroup);
  }
  return 0;
}

}  // namespace infeng
