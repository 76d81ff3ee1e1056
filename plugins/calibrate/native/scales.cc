#include "scales.h"

#include <infeng/extension/half.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "threads.h"

namespace infeng::calibration {
namespace {

constexpr double kDivisors[] = {16, 15, 17, 18, 19, 20, 21};  // sixteenths of low

// One row's group and the range of its codes.
struct Group {
  const float* w;
  const double* weight;
  int64_t count;
  double low, high;
};

struct Fit {
  float scale = 0;
  double cost = std::numeric_limits<double>::infinity();
  double wq = 0, qq = 0;  // weighted sums of w * q and of q * q
};

Fit evaluate(const Group& group, float scale) {
  Fit fit{scale, 0, 0, 0};
  const double inverse = scale == 0 ? 0 : 1.0 / double(scale);
  for (int64_t i = 0; i < group.count; i++) {
    const double w = double(group.w[i]), weight = group.weight[i];
    const double q = std::clamp(std::nearbyint(w * inverse), group.low, group.high);
    const double error = w - double(scale) * q;
    fit.cost += weight * error * error;
    fit.wq += weight * w * q;
    fit.qq += weight * q * q;
  }
  return fit;
}

float rounded(double scale, bool half) {
  if (!half) return float(scale);
  const uint16_t bits = f16_from_f32(float(scale));
  // A scale beyond fp16 stays as it is; packing refuses it.
  return (bits & 0x7c00u) == 0x7c00u ? float(scale) : f32_from_f16(bits);
}

float best_scale(const Group& group, bool half) {
  double extreme = 0;
  for (int64_t i = 0; i < group.count; i++) {
    if (std::fabs(group.w[i]) > std::fabs(extreme)) extreme = group.w[i];
  }
  if (extreme == 0) return 0;
  Fit best;
  auto consider = [&](double scale) {
    const Fit fit = evaluate(group, rounded(scale, half));
    if (fit.cost < best.cost) best = fit;
  };
  for (const double divisor : kDivisors) consider(extreme / (group.low * divisor / 16));
  consider(extreme / group.high);
  if (best.qq > 0) consider(best.wq / best.qq);
  return best.scale;
}

}  // namespace

void choose_scales(const float* w, int64_t n, int64_t k, const double* weight, int64_t group, int low, int high,
                   bool half, float* scales, int threads) {
  const int64_t groups = (k + group - 1) / group;
  for_each(n, threads, [&](int64_t row) {
    for (int64_t g = 0; g < groups; g++) {
      const int64_t begin = g * group, count = std::min(group, k - begin);
      scales[row * groups + g] =
          best_scale({w + row * k + begin, weight + begin, count, double(low), double(high)}, half);
    }
  });
}

}  // namespace infeng::calibration
