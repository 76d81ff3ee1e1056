#include "inputs.h"

#include <infeng/extension/clones.h>

#include <algorithm>
#include <cmath>

#include "threads.h"

namespace infeng::calibration {
namespace {

constexpr int64_t kRows = 64;           // rows per task of a thread
constexpr float kSmallest = 0x1p-100f;  // a group whose largest magnitude lies below counts as zero
constexpr float kRound = 0x1.8p23f;     // ties to even for |x| < 2^22

INFENG_CLONED void round_group(const float* x, int64_t count, float* out) {
  float amax = 0;
  for (int64_t i = 0; i < count; i++) amax = amax > std::fabs(x[i]) ? amax : std::fabs(x[i]);
  const float by = 127.0f / amax, step = amax / 127.0f;
  for (int64_t i = 0; i < count; i++) {
    float q = (x[i] * by + kRound) - kRound;
    q = q > 127.0f ? 127.0f : q;
    q = q < -127.0f ? -127.0f : q;
    out[i] = amax < kSmallest ? 0.0f : q * step;
  }
}

}  // namespace

void round_inputs(const float* x, int64_t rows, int64_t k, int64_t group, float* out, int threads) {
  for_each((rows + kRows - 1) / kRows, threads, [&](int64_t tile) {
    for (int64_t row = tile * kRows; row < std::min(rows, (tile + 1) * kRows); row++) {
      for (int64_t begin = 0; begin < k; begin += group) {
        round_group(x + row * k + begin, std::min(group, k - begin), out + row * k + begin);
      }
    }
  });
}

}  // namespace infeng::calibration
