// rmsnorm: lane[i mod 16] = fma(x[i], x[i], lane);  r = 1 / sqrt(tree(lanes) / K + eps);  y[i] = (x[i] * r) * w[i]
// A tile is one row. QUANTIZE is fused: the row is finished 64 columns at a time. SPDX-License-Identifier: Apache-2.0
#ifndef INFENG_OPS_RMSNORM_H
#define INFENG_OPS_RMSNORM_H

#include <infeng/ops/quantize.h>

namespace infeng {
namespace {

template <Vector V>
struct Rmsnorm {
  static constexpr uint32_t kOp = INFENG_OP_RMSNORM;
  static constexpr uint32_t kFuses = INFENG_EPILOGUE_BIT(INFENG_EPILOGUE_QUANTIZE);

  static constexpr uint64_t kHandles = INFENG_NEED_BIT(INFENG_NEED_ROW_GATHER);

  static int32_t accepts(const infeng_problem* p) { return p->op == kOp && epilogues_within(*p, kFuses); }

  static int64_t tiles(const infeng_args* args, int32_t) { return args->rows; }

  static infeng_status run(const infeng_args* common, int32_t, int64_t first, int64_t last, infeng_worker* worker) {
    const auto& args = *(const infeng_rmsnorm_args*)common;
    if (!epilogues_within(*common, kFuses)) return fail(worker, INFENG_UNIMPLEMENTED, "rmsnorm fuses quantize only");
    for (int64_t row = first; row < last; ++row) normalize(args, row);
    return INFENG_OK;
  }

 private:
  static void normalize(const infeng_rmsnorm_args& args, int64_t row) {
    const int64_t k = args.x.shape[1];
    const float* x = row_of<float>(args.x, args.row_index ? args.row_index[row] : row);
    const float* w = row_of<float>(args.weight, 0);
    auto lanes = V::zero();
    for (int64_t c = 0; c < k; c += kLanes) {
      const auto v = V::load(x + c, int(min_of(k - c, kLanes)));
      lanes = V::fma(v, v, lanes);
    }
    const float mean = V::tree(lanes) / float(k) + args.eps;
    const auto r = V::div(V::set(1.0f), V::sqrt(V::set(mean)));
    for (int64_t column = 0; column < k; column += kGroup) {
      const int width = int(min_of(kGroup, k - column));
      alignas(64) float y[kGroup];
      for (int c = 0; c < width; c += kLanes)
        V::store(y + c, V::mul(V::mul(V::load(x + column + c, width - c), r), V::load(w + column + c, width - c)));
      for (uint32_t i = 0; i < args.common.epilogue_count; ++i)
        quantize_columns<V>(act_of(args.common.epilogues[i]), row, column, y, width);
      if (!args.out.data) continue;
      float* out = row_of<float>(args.out, row) + column;
      for (int c = 0; c < width; c += kLanes) V::store(out + c, V::load(y + c), width - c);
    }
  }
};

}  // namespace
}  // namespace infeng
#endif  // INFENG_OPS_RMSNORM_H
