// ROPE.
#include "../kernels/rope.h"

#include "flatten.h"

namespace infeng_cuda {
namespace {

RopeHeads heads_of(const infeng_tensor& x, const float* norm, const float* scale) {
  const int32_t heads = x.data == nullptr ? 0 : static_cast<int32_t>(x.shape[1]);
  return {static_cast<float*>(x.data), x.strides[0], x.strides[1], heads, norm, scale};
}

infeng_status run(const infeng_args* common, int32_t, int64_t, int64_t, infeng_worker* worker) {
  static Entry entry{"rope"};
  const auto& args = *reinterpret_cast<const infeng_rope_args*>(common);
  Rope p;
  p.q = heads_of(args.q, args.q_norm, args.q_scale);
  p.k = heads_of(args.k, args.k_norm, nullptr);
  p.positions = args.positions;
  p.cos = static_cast<const float*>(args.cos.data);
  p.sin = static_cast<const float*>(args.sin.data);
  p.cos_stride = args.cos.strides[0];
  p.sin_stride = args.sin.strides[0];
  p.half = static_cast<int32_t>(args.cos.shape[1]);
  p.size = static_cast<int32_t>((p.q.heads > 0 ? args.q : args.k).shape[2]);
  p.eps = args.eps;
  return launch(entry, {common->rows, ceil_div(p.q.heads + p.k.heads, kRopeWarps)}, 32 * kRopeWarps, p, worker);
}

int32_t accepts(const infeng_problem* p) { return p->op == INFENG_OP_ROPE && fuses_only(p, 0); }

}  // namespace

extern "C" const infeng_kernel cuda_rope =
    whole_kernel(INFENG_OP_ROPE, "rope", 0,
                 INFENG_NEED_BIT(INFENG_NEED_ROPE_NORM) | INFENG_NEED_BIT(INFENG_NEED_ROPE_SCALE), accepts, run);

}  // namespace infeng_cuda
