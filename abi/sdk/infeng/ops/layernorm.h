// layernorm: mean = tree(lanes of x) / K;  d = x - mean;  r = 1 / sqrt(tree(lanes of d^2) / K + eps);
//   y[i] = fma(d[i] * r, w[i], b[i])
// A tile is one row, which is read three times: a row of the widest models fits in the L1 cache. QUANTIZE can be fused:
// the row is finished 256 columns at a time. SPDX-License-Identifier: Apache-2.0
#ifndef INFENG_OPS_LAYERNORM_H
#define INFENG_OPS_LAYERNORM_H

#include <infeng/ops/quantize.h>

namespace infeng {
namespace {

template <Vector V>
struct Layernorm {
  static constexpr uint32_t kOp = INFENG_OP_LAYERNORM;
  static constexpr uint32_t kFuses = INFENG_EPILOGUE_BIT(INFENG_EPILOGUE_QUANTIZE);
  static constexpr uint64_t kHandles = INFENG_NEED_BIT(INFENG_NEED_ROW_GATHER) | kHandlesWide | kHandlesRows;

  static int32_t accepts(const infeng_problem* p) { return p->op == kOp && epilogues_within(*p, kFuses, true, true); }

  static infeng_status workspace(const infeng_problem* problem, infeng_workspace* out) {
    return row_workspace(problem, out);
  }

  static int64_t tiles(const infeng_args* args, int32_t) { return args->rows; }

  static infeng_status run(const infeng_args* common, int32_t, int64_t first, int64_t last, infeng_worker* worker) {
    if (!epilogues_within(*common, kFuses, true, true))
      return fail(worker, INFENG_UNIMPLEMENTED, "layernorm fuses quantize only");
    for (int64_t row = first; row < last; ++row)
      normalize(*(const infeng_layernorm_args*)common, row, (float*)worker->private_);
    return INFENG_OK;
  }

 private:
  using F = typename V::F;

  // The mean in every lane.
  static INFENG_INLINE F mean_of(const float* x, int64_t k) {
    F lanes = V::zero();
    for (int64_t c = 0; c < k; c += kLanes) lanes = V::add(lanes, V::load(x + c, int(min_of(k - c, kLanes))));
    return V::set(V::tree(lanes) / float(k));
  }

  // 1 / sqrt(variance + eps) in every lane. Behind the last x the row continues with the mean, of which d is +0.
  static INFENG_INLINE F inverse_deviation(const float* x, int64_t k, F mean, float eps) {
    const int64_t whole = k / kLanes * kLanes;
    alignas(64) float tail[kLanes];
    V::store(tail, mean);
    V::store(tail, V::load(x + whole, int(k - whole)), int(k - whole));
    F lanes = V::zero();
    for (int64_t c = 0; c < k; c += kLanes) {
      const F d = V::sub(V::load(c < whole ? x + c : tail), mean);
      lanes = V::fma(d, d, lanes);
    }
    return V::div(V::set(1.0f), V::sqrt(V::set(V::tree(lanes) / float(k) + eps)));
  }

  // `out` may be x. `kept` takes the row for steps that quantize it whole.
  static void normalize(const infeng_layernorm_args& args, int64_t row, float* kept) {
    const int64_t k = args.x.shape[1];
    const float* x = row_of<float>(args.x, args.row_index ? args.row_index[row] : row);
    const float *w = row_of<float>(args.weight, 0), *b = row_of<float>(args.bias, 0);
    float* out = args.out.data ? row_of<float>(args.out, row) : nullptr;
    const F mean = mean_of(x, k), r = inverse_deviation(x, k, mean, args.eps);
    const auto value = [&](int64_t c, int n) INFENG_INLINE_LAMBDA {
      return V::fma(V::mul(V::sub(V::load(x + c, n), mean), r), V::load(w + c, n), V::load(b + c, n));
    };
    finish_columns<V>(args.common, row, k, value, out, kept);
  }
};

}  // namespace
}  // namespace infeng
#endif  // INFENG_OPS_LAYERNORM_H
