// rmsnorm: lane[i mod 16] = fma(x[i], x[i], lane);  r = 1 / sqrt(tree(lanes) / K + eps);  y[i] = (x[i] * r) * w[i] With
// an offset other than 0, w[i] is offset + w[i]. A tile is one row: one vector, or heads that are normalized one by
// one. QUANTIZE can be fused if there are no heads: the row is finished 256 columns at a time.
// SPDX-License-Identifier: Apache-2.0
#ifndef INFENG_OPS_RMSNORM_H
#define INFENG_OPS_RMSNORM_H

#include <infeng/ops/quantize.h>

namespace infeng {
namespace {

// r in every lane.
template <Vector V>
INFENG_INLINE typename V::F root_mean_square(const float* x, int64_t k, float eps) {
  auto lanes = V::zero();
  for (int64_t c = 0; c < k; c += kLanes) {
    const auto v = V::load(x + c, int(min_of(k - c, kLanes)));
    lanes = V::fma(v, v, lanes);
  }
  const float mean = V::tree(lanes) / float(k) + eps;
  return V::div(V::set(1.0f), V::sqrt(V::set(mean)));
}

template <Vector V>
struct Rmsnorm {
  static constexpr uint32_t kOp = INFENG_OP_RMSNORM;
  static constexpr uint32_t kFuses = INFENG_EPILOGUE_BIT(INFENG_EPILOGUE_QUANTIZE);

  static constexpr uint64_t kHandles = INFENG_NEED_BIT(INFENG_NEED_ROW_GATHER) |
                                       INFENG_NEED_BIT(INFENG_NEED_NORM_HEADS) |
                                       INFENG_NEED_BIT(INFENG_NEED_NORM_OFFSET) | kHandlesWide | kHandlesRows;

  static int32_t accepts(const infeng_problem* p) {
    const bool has_heads = (p->needs & INFENG_NEED_BIT(INFENG_NEED_NORM_HEADS)) != 0;
    return p->op == kOp && epilogues_within(*p, has_heads ? 0 : kFuses, true, true);
  }

  static infeng_status workspace(const infeng_problem* problem, infeng_workspace* out) {
    return row_workspace(problem, out);
  }

  static int64_t tiles(const infeng_args* args, int32_t) { return args->rows; }

  static infeng_status run(const infeng_args* common, int32_t, int64_t first, int64_t last, infeng_worker* worker) {
    const auto& args = *(const infeng_rmsnorm_args*)common;
    if (!epilogues_within(*common, kFuses, true, true))
      return fail(worker, INFENG_UNIMPLEMENTED, "rmsnorm fuses quantize only");
    const int64_t heads = args.x.ndim == 3 ? args.x.shape[1] : 1;
    for (int64_t row = first; row < last; ++row) {
      const float* x = row_of<float>(args.x, args.row_index ? args.row_index[row] : row);
      float* out = args.out.data ? row_of<float>(args.out, row) : nullptr;
      for (int64_t h = 0; h < heads; ++h)
        normalize(args, row, x + h * args.x.strides[1], out ? out + h * args.out.strides[1] : nullptr,
                  (float*)worker->private_);
    }
    return INFENG_OK;
  }

 private:
  // `out` may be x. `kept` takes the row for steps that quantize it whole.
  static void normalize(const infeng_rmsnorm_args& args, int64_t row, const float* x, float* out, float* kept) {
    const int64_t k = args.x.shape[args.x.ndim - 1];
    const float* w = row_of<float>(args.weight, 0);
    const auto r = root_mean_square<V>(x, k, args.eps);
    const auto value = [&](int64_t c, int n) INFENG_INLINE_LAMBDA {
      const auto weight = V::load(w + c, n);
      return V::mul(V::mul(V::load(x + c, n), r), args.offset != 0.0f ? V::add(V::set(args.offset), weight) : weight);
    };
    finish_columns<V>(args.common, row, k, value, out, kept);
  }
};

}  // namespace
}  // namespace infeng
#endif  // INFENG_OPS_RMSNORM_H
