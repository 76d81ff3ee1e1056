// linear over f32 and bf16 weights and f32 activations, one chain per output:
//   acc = +0;  for k = 0 .. K-1:  acc = fma(x[k], w[n][k], acc)
// K is cut into chunks whose panels stay in the L1 cache while all rows pass; chains continue from scratch.
// SPDX-License-Identifier: Apache-2.0
#ifndef INFENG_OPS_LINEAR_FLOAT_H
#define INFENG_OPS_LINEAR_FLOAT_H

#include <infeng/ops/linear.h>

namespace infeng {
namespace {

// [k][16 n]
struct PanelF32 {
  static constexpr uint32_t kFormat = INFENG_WEIGHT_F32;
  static constexpr int kStep = 1;  // k per line
  template <Vector V>
  static INFENG_INLINE auto load(const uint8_t* line, int) {
    return V::load((const float*)line);
  }
};

// [k/2][16 n][2 k]
struct PanelBf16 {
  static constexpr uint32_t kFormat = INFENG_WEIGHT_BF16;
  static constexpr int kStep = 2;
  template <Vector V>
  static INFENG_INLINE auto load(const uint8_t* line, int k) {
    return k == 0 ? V::load_bf16_even(line) : V::load_bf16_odd(line);
  }
};

template <class Panel>
struct FloatCore {
  static constexpr uint32_t kFormat = Panel::kFormat;
  static constexpr uint32_t kActivation = INFENG_ACT_F32;
  static constexpr int64_t kScratch = 0;
  static constexpr int64_t kChunk = 128;  // k
  static constexpr int kRows = 6;

  template <Vector V>
  static void multiply(const LinearTile& t) {
    const int64_t k = t.weight.k;
    const int64_t chunk = t.rows <= kRows ? k : kChunk;
    clear<V>(t);
    for_panels<V::kColumns>(t.panels, [&](int64_t p, auto count) {
      for (int64_t k0 = 0; k0 < k; k0 += chunk)
        balanced_blocks<kRows>(int(t.rows), [&](int m, auto rows) {
          block<V, rows.value, count.value>(t, p, m, k0, min_of(k0 + chunk, k));
        });
    });
  }

 private:
  template <Vector V, int M, int P>
  static INFENG_NOINLINE void block(const LinearTile& t, int64_t panel, int64_t row, int64_t k0, int64_t k1) {
    using F = typename V::F;
    const int64_t bytes = t.weight.panel_bytes;
    const uint8_t* w = t.panel + panel * bytes;
    float* cur = t.cur + row * kTileWidth + panel * kLanes;
    const float* x[M];
    F acc[M][P];
    INFENG_EACH (m, M) {
      x[m] = row_of<float>(t.in.x, t.row + row + m);
      INFENG_EACH (p, P) acc[m][p] = V::load(cur + m * kTileWidth + p * kLanes);
    }
    const auto step = [&](int64_t k, int j) INFENG_INLINE_LAMBDA {
      F v[P];
      INFENG_EACH (p, P) v[p] = Panel::template load<V>(w + p * bytes + k / Panel::kStep * kLine, j);
      INFENG_EACH (m, M) {
        const F b = V::set(x[m][k + j]);
        INFENG_EACH (p, P) acc[m][p] = V::fma(b, v[p], acc[m][p]);
      }
    };
    int64_t k = k0;
    for (; k + Panel::kStep <= k1; k += Panel::kStep) {
      if (k % kGroup == 0) t.feed.template step<V>();
      INFENG_EACH (j, Panel::kStep) step(k, j);
    }
    if (k < k1) step(k, 0);  // the first half of the last pair
    INFENG_EACH (m, M)
      INFENG_EACH (p, P) V::store(cur + m * kTileWidth + p * kLanes, acc[m][p]);
  }
};

template <Vector V, class Panel>
using LinearFloat = Linear<V, FloatCore<Panel>>;

}  // namespace
}  // namespace infeng
#endif  // INFENG_OPS_LINEAR_FLOAT_H
