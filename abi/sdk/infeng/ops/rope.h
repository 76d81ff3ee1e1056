// rope, in place on every head of q and k: pairs (a, b) = (x[i], x[i + rot/2]), c and s of the row's position
//   a' = fma(a, c, -(b * s));  b' = fma(b, c, a * s);  elements from rot on are unchanged. A tile is one row.
//   Before that, heads with a norm weight are normalized as in rmsnorm.h; after it, q is scaled by its position.
// SPDX-License-Identifier: Apache-2.0
#ifndef INFENG_OPS_ROPE_H
#define INFENG_OPS_ROPE_H

#include <infeng/ops/rmsnorm.h>

namespace infeng {
namespace {

template <Vector V>
struct Rope {
  static constexpr uint32_t kOp = INFENG_OP_ROPE;
  static constexpr uint32_t kFuses = 0;
  static constexpr uint64_t kHandles = INFENG_NEED_BIT(INFENG_NEED_ROPE_NORM) | INFENG_NEED_BIT(INFENG_NEED_ROPE_SCALE);

  static int32_t accepts(const infeng_problem* p) { return p->op == kOp && p->epilogue_count == 0; }

  static int64_t tiles(const infeng_args* args, int32_t) { return args->rows; }

  static infeng_status run(const infeng_args* common, int32_t, int64_t first, int64_t last, infeng_worker* worker) {
    const auto& args = *(const infeng_rope_args*)common;
    const int64_t half = args.cos.shape[1];
    for (int64_t row = first; row < last; ++row) {
      const int64_t position = args.positions[row];
      if (position < 0 || position >= args.cos.shape[0])
        return fail(worker, INFENG_INVALID_ARGUMENT, "position lies outside the rope tables");
      const float* c = row_of<float>(args.cos, position);
      const float* s = row_of<float>(args.sin, position);
      rotate_row(args.q, row, c, s, half, args.q_norm, args.eps, args.q_scale ? args.q_scale + position : nullptr);
      rotate_row(args.k, row, c, s, half, args.k_norm, args.eps, nullptr);
    }
    return INFENG_OK;
  }

 private:
  static void rotate_row(const infeng_tensor& x, int64_t row, const float* cos, const float* sin, int64_t half,
                         const float* norm, float eps, const float* scale) {
    if (!x.data) return;
    for (int64_t h = 0; h < x.shape[1]; ++h) {
      float* head = row_of<float>(x, row) + h * x.strides[1];
      if (norm) normalize(head, norm, x.shape[2], eps);
      for (int64_t i = 0; i < half; i += kLanes) {
        const int n = int(min_of(half - i, kLanes));
        const auto a = V::load(head + i, n), b = V::load(head + half + i, n);
        const auto c = V::load(cos + i, n), s = V::load(sin + i, n);
        V::store(head + i, V::fms(a, c, V::mul(b, s)), n);
        V::store(head + half + i, V::fma(b, c, V::mul(a, s)), n);
      }
      for (int64_t i = 0; scale && i < x.shape[2]; i += kLanes) {
        const int n = int(min_of(x.shape[2] - i, kLanes));
        V::store(head + i, V::mul(V::load(head + i, n), V::set(*scale)), n);
      }
    }
  }

  // head[i] = (head[i] * r) * norm[i]
  static void normalize(float* head, const float* norm, int64_t size, float eps) {
    const auto r = root_mean_square<V>(head, size, eps);
    for (int64_t i = 0; i < size; i += kLanes) {
      const int n = int(min_of(size - i, kLanes));
      V::store(head + i, V::mul(V::mul(V::load(head + i, n), r), V::load(norm + i, n)), n);
    }
  }
};

}  // namespace
}  // namespace infeng
#endif  // INFENG_OPS_ROPE_H
