#include "quantize_p32.h"

#include <infeng/extension/clones.h>

#include "lanes.h"

namespace infeng {
namespace {

// Factors of a row's scale amax / 127; below 1, the largest values are clipped in favour of all others.
constexpr float kRowFactors[kRowScaleCandidates] = {1.0f, 0.93f, 0.86f, 0.8f};
// Fractions of a group's range that its grid may span.
constexpr float kClips[] = {1.0f, 0.93f, 0.86f};
// Candidates around the nearest s, and around the z of the best s.
constexpr float kScaleChanges[] = {0.0f, -1.0f, 1.0f};
constexpr float kZeroChanges[] = {-1.0f, 1.0f};

// Adding kRounder rounds to an integer, ties to even, if |x| < 2^22, which a clamp ensures. Subtracting an integer from
// the sum is exact.
constexpr float kRounder = 0x1.8p23f;

INFENG_INLINE Lanes round_even(const Lanes& x) { return (x + every_lane(kRounder)) - every_lane(kRounder); }

INFENG_INLINE Lanes clamped(const Lanes& x, const Lanes& low, const Lanes& high) {
  return larger(smaller(x, high), low);
}

// x / y, and `otherwise` where y is 0.
INFENG_INLINE Lanes divided(const Lanes& x, const Lanes& y, float otherwise) {
  const LaneMask none = y == every_lane(0.0f);
  return chosen(none, every_lane(otherwise), x / chosen(none, every_lane(1.0f), y));
}

// The constants that convert inputs to units, for 16 outputs.
struct Steps {
  Lanes z;
  Lanes step;  // d s
  Lanes by;    // 1 / (d s)
  Lanes low;   // units for which s (u - z) fits
  Lanes high;
};

INFENG_INLINE Lanes whole(const Lanes& positive) {
  Lanes made;
  for (int h = 0; h < 2; h++) {
    const auto integers = __builtin_convertvector(positive.half[h], EightInts);
    made.half[h] = __builtin_convertvector(integers, EightFloats);
  }
  return made;
}

INFENG_INLINE Steps steps_of(SubGrid grid, const Lanes& d, const Lanes& s, const Lanes& z) {
  const Lanes step = d * s;
  const Lanes below = z - whole(every_lane(float(-kLowest)) / s), above = z + whole(every_lane(float(kHighest)) / s);
  return {z, step, divided(every_lane(1.0f), step, 0.0f), larger(below, every_lane(0.0f)),
          smaller(above, every_lane(float(grid.most_unit())))};
}

// u - z of one input of each output.
INFENG_INLINE Lanes distance(const Lanes& x, const Steps& steps, const Lanes& rounded_zero) {
  const Lanes u = clamped(x * steps.by + steps.z, steps.low, steps.high);
  return (u + every_lane(kRounder)) - rounded_zero;
}

// The best s and z of each output so far; the first of equal errors stays.
struct P32Best {
  bool any = false;
  Lanes s, z, error;
};

INFENG_INLINE Lanes error_of(GroupInputs x, const Steps& steps) {
  const Lanes rounded_zero = steps.z + every_lane(kRounder);
  Lanes sum = every_lane(0.0f);
  for (int k = 0; k < kSubGroup; k++) {
    const Lanes input = load_lanes(x[k]);
    const Lanes difference = input - steps.step * distance(input, steps, rounded_zero);
    sum = sum + difference * difference;
  }
  return sum;
}

INFENG_INLINE void consider(SubGrid grid, GroupInputs x, const Lanes& d, const Lanes& s, const Lanes& z,
                            P32Best* best) {
  const Lanes error = error_of(x, steps_of(grid, d, s, z));
  if (!best->any) {
    *best = {true, s, z, error};
    return;
  }
  const LaneMask better = error < best->error;
  best->s = chosen(better, s, best->s);
  best->z = chosen(better, z, best->z);
  best->error = chosen(better, error, best->error);
}

}  // namespace

void row_scales(const float amax[kLanes], int index, float d[kLanes]) {
  for (int n = 0; n < kLanes; n++) d[n] = amax[n] < kSmallest ? 0.0f : amax[n] / 127.0f * kRowFactors[index];
}

INFENG_CLONED void search_sub_scale(SubGrid grid, GroupInputs x, const float scales[kLanes], SubScale* found,
                                    float error[kLanes]) {
  const Lanes zero = every_lane(0.0f), one = every_lane(1.0f), d = load_lanes(scales);
  const Lanes most_unit = every_lane(float(grid.most_unit())), most_scale = every_lane(float(grid.most_scale()));
  Lanes low = zero, high = zero;
  for (int k = 0; k < kSubGroup; k++) {
    const Lanes input = load_lanes(x[k]);
    low = smaller(input, low);
    high = larger(input, high);
  }
  P32Best best;
  for (const float clip : kClips) {
    const Lanes range = (high - low) * every_lane(clip), lowest = -low * every_lane(clip);
    const Lanes wanted = round_even(clamped(divided(range, d * most_unit, 1.0f), zero, most_scale));
    for (const float change : kScaleChanges) {
      const Lanes s = clamped(wanted + every_lane(change), one, most_scale);
      const Lanes z = round_even(clamped(divided(lowest, d * s, 0.0f), zero, most_unit));
      consider(grid, x, d, s, z, &best);
    }
  }
  const Lanes s = best.s, z = best.z;
  for (const float change : kZeroChanges) {
    const Lanes moved = clamped(z + every_lane(change), zero, most_unit);
    consider(grid, x, d, s, chosen(d == zero, zero, moved), &best);
  }
  store_lanes(found->s, best.s);
  store_lanes(found->z, best.z);
  store_lanes(error, best.error);
}

INFENG_CLONED void assign_units(SubGrid grid, GroupInputs x, const float scales[kLanes], const SubScale& sub,
                                uint8_t u[][kLanes], int8_t w[][kLanes]) {
  const Lanes s = load_lanes(sub.s), z = load_lanes(sub.z);
  const Steps steps = steps_of(grid, load_lanes(scales), s, z);
  const Lanes rounded_zero = z + every_lane(kRounder);
  for (int k = 0; k < kSubGroup; k++) {
    const Lanes units = distance(load_lanes(x[k]), steps, rounded_zero);
    float unit[kLanes], weight[kLanes];
    store_lanes(unit, units + z);
    store_lanes(weight, s * units);
    for (int n = 0; n < kLanes; n++) u[k][n] = uint8_t(int32_t(unit[n]));
    for (int n = 0; n < kLanes; n++) w[k][n] = int8_t(int32_t(weight[n]));
  }
}

INFENG_CLONED void add_products(GroupInputs x, const int8_t w[][kLanes], double xw[kLanes], double ww[kLanes]) {
  double products[kLanes], squares[kLanes];
  for (int n = 0; n < kLanes; n++) products[n] = xw[n], squares[n] = ww[n];
  for (int k = 0; k < kSubGroup; k++) {
    for (int n = 0; n < kLanes; n++) {
      products[n] += double(x[k][n]) * double(w[k][n]);
      squares[n] += double(w[k][n]) * double(w[k][n]);
    }
  }
  for (int n = 0; n < kLanes; n++) xw[n] = products[n], ww[n] = squares[n];
}

}  // namespace infeng
