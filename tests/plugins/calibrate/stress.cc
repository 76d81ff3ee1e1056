// Everything that conversions ask of the native code, on one thread and on several at once: under sanitizers no byte is
// read or written that should not be, no two threads meet, and the results are the same bytes.
#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

#include "aim.h"
#include "descent.h"
#include "factor.h"
#include "gptq.h"
#include "gram.h"
#include "inputs.h"
#include "scales.h"
#include "subscales.h"

namespace {

using namespace infeng;
using namespace infeng::calibration;

// Odd sizes: parts of tiles, blocks, groups and panels are left over.
constexpr int64_t kRows = 1100, kOutputs = 37, kInputs = 330, kGroup = 64;
constexpr int kBits = 4;

struct Random {
  uint64_t state = 1;
  float next() {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return float(int32_t(state >> 32)) * 0x1p-31f;
  }
};

template <class T>
void append(std::vector<char>* all, const std::vector<T>& values) {
  const char* const begin = reinterpret_cast<const char*>(values.data());
  all->insert(all->end(), begin, begin + values.size() * sizeof(T));
}

std::vector<char> results(int threads) {
  const int64_t n = kOutputs, k = kInputs, groups = (k + kGroup - 1) / kGroup, subs = (k + kSubGroup - 1) / kSubGroup;
  Random random;
  std::vector<float> x(size_t(kRows * k)), y(x.size()), w(size_t(n * k));
  for (std::vector<float>* values : {&x, &y, &w}) {
    for (float& value : *values) value = random.next();
  }
  std::vector<char> made;
  std::vector<float> rounded(x.size());
  round_inputs(x.data(), kRows, k, kGroup, rounded.data(), threads);
  append(&made, rounded);

  std::vector<double> h(size_t(k * k)), drift(h.size()), factors(h.size()), costs(static_cast<size_t>(k));
  add_gram(x.data(), kRows, k, h.data(), threads);
  add_cross(y.data(), k, x.data(), kRows, k, drift.data(), threads);
  for (int64_t i = 0; i < k; i++) {
    for (int64_t j = 0; j < i; j++) h[size_t(i * k + j)] = h[size_t(j * k + i)];
    costs[size_t(i)] = h[size_t(i * k + i)] += 1;
  }
  std::vector<int32_t> order(static_cast<size_t>(k));
  for (int64_t i = 0; i < k; i++) order[size_t(i)] = int32_t(k - 1 - i);  // so the factors' rows are in their own order
  factors = h;
  if (factor(factors.data(), k, threads) >= 0) std::fprintf(stderr, "not positive definite\n");
  append(&made, h), append(&made, drift), append(&made, factors);

  std::vector<float> aimed(w.size()), scales(size_t(n * groups));
  aim(w.data(), n, k, drift.data(), order.data(), factors.data(), aimed.data(), threads);
  choose_scales(aimed.data(), n, k, costs.data(), kGroup, -8, 7, true, scales.data(), threads);
  std::vector<int8_t> low(scales.size(), -8), high(scales.size(), 7), codes(w.size());
  choose_codes(aimed.data(), n, k, order.data(), factors.data(),
               {scales.data(), low.data(), high.data(), kGroup, groups}, codes.data(), threads);
  append(&made, aimed), append(&made, scales), append(&made, codes);

  std::vector<float> d(static_cast<size_t>(n)), steps(size_t(n * subs));
  std::vector<int8_t> s(steps.size()), z(steps.size());
  const SubGrid grid{kBits};
  const SubScales sub{d.data(), s.data(), z.data()};
  choose_sub_scales(aimed.data(), n, k, costs.data(), grid, sub, threads);
  low.resize(steps.size()), high.resize(steps.size());
  for (size_t i = 0; i < steps.size(); i++) {
    steps[i] = d[i / size_t(subs)] * float(s[i]);
    low[i] = int8_t(-z[i]);
    high[i] = int8_t(grid.most_unit() - z[i]);
  }
  choose_codes(aimed.data(), n, k, order.data(), factors.data(),
               {steps.data(), low.data(), high.data(), kSubGroup, subs}, codes.data(), threads);
  descend(aimed.data(), n, k, h.data(), 1, grid, {sub, codes.data()}, threads);
  refit_scales(aimed.data(), codes.data(), n, k, h.data(), d.data(), threads);
  append(&made, d), append(&made, s), append(&made, z), append(&made, codes);
  return made;
}

}  // namespace

int main() {
  const std::vector<char> expected = results(1);
  std::vector<char> found[2];
  std::thread other([&] { found[0] = results(3); });
  found[1] = results(4);
  other.join();
  for (const std::vector<char>& one : found) {
    if (one.size() == expected.size() && std::memcmp(one.data(), expected.data(), one.size()) == 0) continue;
    std::fprintf(stderr, "calibrate_stress: other bytes on several threads\n");
    return 1;
  }
  std::printf("calibrate_stress: ok\n");
  return 0;
}
