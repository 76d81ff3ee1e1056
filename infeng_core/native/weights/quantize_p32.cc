#include "weights/quantize_p32.h"

#include <cmath>
#include <cstring>

#include "clones.h"

namespace infeng {
namespace {

constexpr float kSmallest = 0x1p-100f;  // a row whose largest magnitude lies below counts as zero

// A row's scale is amax / 127 or less: its largest value is clipped in favour of all others.
constexpr float kRowFactors[kRowScaleCandidates] = {1.0f, 0.93f, 0.86f, 0.8f};
// How much of a group's range its grid spans.
constexpr float kClips[] = {1.0f, 0.93f, 0.86f};
// What is tried around the nearest s, and around the z of the best s.
constexpr float kScaleChanges[] = {0.0f, -1.0f, 1.0f};
constexpr float kZeroChanges[] = {-1.0f, 1.0f};

// Ties to even for |x| < 2^22, which a clamp before it ensures.
INFENG_INLINE float round_even(float x) { return (x + 0x1.8p23f) - 0x1.8p23f; }

INFENG_INLINE float clamped(float x, float low, float high) {
  x = x < high ? x : high;
  return x > low ? x : low;
}

// What turns inputs into units, for 16 outputs.
struct Steps {
  float by[kLanes];    // 1 / (d s)
  float step[kLanes];  // d s
  float low[kLanes];   // units for which s (u - z) fits
  float high[kLanes];
};

INFENG_INLINE void prepare(SubGrid grid, const float d[kLanes], const SubScale& sub, Steps* out) {
  for (int n = 0; n < kLanes; n++) {
    const float s = sub.s[n], z = sub.z[n], step = d[n] * s;
    out->step[n] = step;
    out->by[n] = step == 0.0f ? 0.0f : 1.0f / step;
    const float below = z - std::floor(float(-kLowest) / s), above = z + std::floor(float(kHighest) / s);
    out->low[n] = below > 0.0f ? below : 0.0f;
    out->high[n] = above < float(grid.most_unit()) ? above : float(grid.most_unit());
  }
}

INFENG_CLONED void evaluate(GroupInputs x, const Steps& steps, const float z[kLanes], float error[kLanes]) {
  float sum[kLanes] = {};
  for (int k = 0; k < kSubGroup; k++) {
    for (int n = 0; n < kLanes; n++) {
      const float u = round_even(clamped(x[k][n] * steps.by[n] + z[n], steps.low[n], steps.high[n]));
      const float difference = x[k][n] - steps.step[n] * (u - z[n]);
      sum[n] += difference * difference;
    }
  }
  std::memcpy(error, sum, sizeof sum);
}

INFENG_CLONED void ranges(GroupInputs x, float low[kLanes], float high[kLanes]) {
  for (int n = 0; n < kLanes; n++) low[n] = high[n] = 0.0f;
  for (int k = 0; k < kSubGroup; k++) {
    for (int n = 0; n < kLanes; n++) {
      low[n] = x[k][n] < low[n] ? x[k][n] : low[n];
      high[n] = x[k][n] > high[n] ? x[k][n] : high[n];
    }
  }
}

// The best so far of each output; the first of equal errors stays.
class Search {
 public:
  Search(SubGrid grid, GroupInputs x, const float d[kLanes], SubScale* best, float error[kLanes])
      : grid_(grid), x_(x), d_(d), best_(best), error_(error) {}

  void consider(const SubScale& sub) {
    Steps steps;
    float error[kLanes];
    prepare(grid_, d_, sub, &steps);
    evaluate(x_, steps, sub.z, error);
    for (int n = 0; n < kLanes; n++) {
      if (!first_ && !(error[n] < error_[n])) continue;
      best_->s[n] = sub.s[n];
      best_->z[n] = sub.z[n];
      error_[n] = error[n];
    }
    first_ = false;
  }

 private:
  SubGrid grid_;
  GroupInputs x_;
  const float* d_;
  SubScale* best_;
  float* error_;
  bool first_ = true;
};

}  // namespace

void row_scales(const float amax[kLanes], int index, float d[kLanes]) {
  for (int n = 0; n < kLanes; n++) d[n] = amax[n] < kSmallest ? 0.0f : amax[n] / 127.0f * kRowFactors[index];
}

void search_sub_scale(SubGrid grid, GroupInputs x, const float d[kLanes], SubScale* best, float error[kLanes]) {
  const float most_unit = float(grid.most_unit()), most_scale = float(grid.most_scale());
  float low[kLanes], high[kLanes];
  ranges(x, low, high);
  Search search(grid, x, d, best, error);
  for (const float clip : kClips) {
    for (const float change : kScaleChanges) {
      SubScale sub;
      for (int n = 0; n < kLanes; n++) {
        const float unit = d[n] * most_unit;
        const float wanted = unit == 0.0f ? 1.0f : clamped((high[n] - low[n]) * clip / unit, 0.0f, most_scale);
        sub.s[n] = clamped(round_even(wanted) + change, 1.0f, most_scale);
        const float step = d[n] * sub.s[n];
        sub.z[n] = step == 0.0f ? 0.0f : round_even(clamped(-low[n] * clip / step, 0.0f, most_unit));
      }
      search.consider(sub);
    }
  }
  const SubScale found = *best;
  for (const float change : kZeroChanges) {
    SubScale sub = found;
    for (int n = 0; n < kLanes; n++) sub.z[n] = d[n] == 0.0f ? 0.0f : clamped(found.z[n] + change, 0.0f, most_unit);
    search.consider(sub);
  }
}

INFENG_CLONED void assign_units(SubGrid grid, GroupInputs x, const float d[kLanes], const SubScale& sub,
                                uint8_t u[][kLanes], int8_t w[][kLanes]) {
  Steps steps;
  prepare(grid, d, sub, &steps);
  for (int k = 0; k < kSubGroup; k++) {
    for (int n = 0; n < kLanes; n++) {
      const float unit = round_even(clamped(x[k][n] * steps.by[n] + sub.z[n], steps.low[n], steps.high[n]));
      u[k][n] = uint8_t(unit);
      w[k][n] = int8_t(sub.s[n] * (unit - sub.z[n]));
    }
  }
}

}  // namespace infeng
