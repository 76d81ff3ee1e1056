#include "subscales.h"

#include <infeng/extension/clones.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "panel.h"
#include "threads.h"

namespace infeng::calibration {
namespace {

constexpr float kRowFactors[] = {1.0f, 0.93f, 0.86f, 0.8f};
constexpr double kClips[] = {1.0, 0.93, 0.86};
constexpr int kScaleChanges[] = {0, -1, 1};
constexpr int kZeroChanges[] = {-1, 1};
constexpr float kSmallest = 0x1p-100f;  // a row whose largest magnitude lies below counts as zero
constexpr int kSums = 8;

// Ties to even for |x| < 2^51, which a clamp before it ensures.
INFENG_INLINE double round_even(double x) { return (x + 0x1.8p52) - 0x1.8p52; }

INFENG_INLINE double clamped(double x, double low, double high) {
  x = x < high ? x : high;
  return x > low ? x : low;
}

// One row's group; values after the last input are 0 and have no loss.
struct Group {
  double w[kSubGroup] = {};
  double cost[kSubGroup] = {};
  double low = 0, high = 0;  // range of its weights, 0 included

  Group(const float* weights, const double* costs, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
      w[i] = double(weights[i]);
      cost[i] = costs[i];
      low = std::min(low, w[i]);
      high = std::max(high, w[i]);
    }
  }
};

// The sum of cost * (w - step * q)^2 with q in [low, high].
INFENG_CLONED double loss(const Group& group, double step, double low, double high) {
  const double by = step == 0 ? 0 : 1 / step;
  double sums[kSums] = {};
  for (int i = 0; i < kSubGroup; i += kSums) {
    for (int j = 0; j < kSums; j++) {
      const double w = group.w[i + j], q = round_even(clamped(w * by, low, high)), error = w - step * q;
      sums[j] += group.cost[i + j] * error * error;
    }
  }
  for (int half = kSums / 2; half > 0; half /= 2) {
    for (int j = 0; j < half; j++) sums[j] += sums[j + half];
  }
  return sums[0];
}

struct Choice {
  int s = 1, z = 0;
  double cost = std::numeric_limits<double>::infinity();
};

Choice best_sub_scale(SubGrid grid, const Group& group, float d) {
  const int most_unit = grid.most_unit(), most_scale = grid.most_scale();
  Choice best;
  auto consider = [&](int s, int z) {
    const int low = std::max(-z, kLowest / s), high = std::min(most_unit - z, kHighest / s);
    const double cost = loss(group, double(d * float(s)), low, high);
    if (cost < best.cost) best = {s, z, cost};
  };
  if (d == 0) {
    consider(1, 0);
    return best;
  }
  for (const double clip : kClips) {
    const double wanted = clamped((group.high - group.low) * clip / (double(d) * most_unit), 0, most_scale);
    for (const int change : kScaleChanges) {
      const int s = std::clamp(int(round_even(wanted)) + change, 1, most_scale);
      const double zero = clamped(-group.low * clip / double(d * float(s)), 0, most_unit);
      consider(s, int(round_even(zero)));
    }
  }
  const Choice found = best;
  for (const int change : kZeroChanges) consider(found.s, std::clamp(found.z + change, 0, most_unit));
  return best;
}

void choose_row(const float* w, int64_t k, const double* weight, SubGrid grid, float* d, int8_t* s, int8_t* z) {
  std::vector<Group> groups;
  for (int64_t begin = 0; begin < k; begin += kSubGroup) {
    groups.emplace_back(w + begin, weight + begin, std::min<int64_t>(kSubGroup, k - begin));
  }
  float amax = 0;
  for (int64_t i = 0; i < k; i++) amax = std::max(amax, std::fabs(w[i]));
  double least = std::numeric_limits<double>::infinity();
  std::vector<Choice> tried(groups.size());
  for (const float factor : kRowFactors) {
    const float scale = amax < kSmallest ? 0.0f : amax / 127.0f * factor;
    double total = 0;
    for (size_t g = 0; g < groups.size(); g++) {
      tried[g] = best_sub_scale(grid, groups[g], scale);
      total += tried[g].cost;
    }
    if (!(total < least)) continue;
    least = total;
    *d = scale;
    for (size_t g = 0; g < groups.size(); g++) s[g] = int8_t(tried[g].s), z[g] = int8_t(tried[g].z);
  }
}

}  // namespace

void choose_sub_scales(const float* w, int64_t n, int64_t k, const double* weight, SubGrid grid, SubScales out,
                       int threads) {
  const int64_t groups = (k + kSubGroup - 1) / kSubGroup;
  for_each(n, threads, [&](int64_t row) {
    choose_row(w + row * k, k, weight, grid, out.d + row, out.s + row * groups, out.z + row * groups);
  });
}

void refit_scales(const float* w, const int8_t* q, int64_t n, int64_t k, const double* h, float* d, int threads) {
  constexpr int64_t kTogether = 64;
  const int64_t tiles = (n + kTogether - 1) / kTogether;
  std::vector<double> wq(static_cast<size_t>(n)), qq(static_cast<size_t>(n));
  std::vector<float> integers(static_cast<size_t>(n * k));
  for_each(n, threads, [&](int64_t row) { std::copy_n(q + row * k, k, integers.data() + row * k); });
  Panel panel(k);
  for (int64_t begin = 0; begin < k; begin += kPanelColumns) {
    panel.load(h, 0, begin, threads);
    for_each(tiles, threads, [&](int64_t tile) {
      const int64_t first = tile * kTogether, rows = std::min(kTogether, n - first);
      float made[kTogether][kPanelColumns];
      panel.multiply(integers.data() + first * k, rows, made);
      for (int64_t i = 0; i < rows; i++) {
        const int64_t row = first + i, at = row * k + begin;
        for (int64_t j = 0; j < std::min(kPanelColumns, k - begin); j++) {
          wq[size_t(row)] += double(made[i][j]) * double(w[at + j]);
          qq[size_t(row)] += double(made[i][j]) * double(integers[size_t(at + j)]);
        }
      }
    });
  }
  for (size_t row = 0; row < size_t(n); row++) {
    if (wq[row] > 0 && qq[row] > 0) d[row] = float(wq[row] / qq[row]);
  }
}

}  // namespace infeng::calibration
