// rmsnorm and layernorm.
#include "../kernels/norms.h"

#include "rounding.h"

namespace infeng_cuda {
namespace {

constexpr uint32_t kFuses = INFENG_EPILOGUE_BIT(INFENG_EPILOGUE_QUANTIZE);
static_assert(kMostRoundings == kMostSteps);

// What both args structs have in common.
template <class Args>
infeng_status normalize(Entry& entry, const Args& args, Norm& p, infeng_worker* worker) {
  const infeng_args& common = args.common;
  p.x = static_cast<const float*>(args.x.data);
  p.x_stride = args.x.strides[0];
  p.row_index = args.row_index;
  p.weight = static_cast<const float*>(args.weight.data);
  p.out = static_cast<float*>(args.out.data);
  p.out_stride = args.out.strides[0];
  p.k = static_cast<int32_t>(args.x.shape[args.x.ndim - 1]);
  p.eps = args.eps;
  p.count = static_cast<int32_t>(common.epilogue_count);
  if (p.k > kMostHeld || p.count > kMostRoundings) return fail(worker, INFENG_UNIMPLEMENTED, "a norm of too long rows");
  for (int32_t i = 0; i < p.count; ++i) {
    if (common.epilogues[i]->kind != INFENG_EPILOGUE_QUANTIZE || args.x.ndim == 3) {
      return fail(worker, INFENG_UNIMPLEMENTED, "norms fuse quantize only, and nothing where x has heads");
    }
    p.roundings[i] = rounding_of(*common.epilogues[i], p.k, p.k);
  }
  const int64_t padded = ceil_div(p.k, kSumColumns) * kSumColumns;
  const auto threads = static_cast<unsigned>(std::min<int64_t>(padded / 4, kMostRoundThreads));
  return launch(entry, {common.rows * p.heads}, threads, p, worker, padded * 4);
}

infeng_status run_rmsnorm(const infeng_args* common, int32_t, int64_t, int64_t, infeng_worker* worker) {
  static Entry entry{"rmsnorm"};
  const auto& args = *reinterpret_cast<const infeng_rmsnorm_args*>(common);
  Norm p;
  if (args.x.ndim == 3) {
    p.heads = static_cast<int32_t>(args.x.shape[1]);
    p.x_head = args.x.strides[1];
    p.out_head = args.out.strides[1];
  }
  p.offset = args.offset;
  return normalize(entry, args, p, worker);
}

infeng_status run_layernorm(const infeng_args* common, int32_t, int64_t, int64_t, infeng_worker* worker) {
  static Entry entry{"layernorm"};
  const auto& args = *reinterpret_cast<const infeng_layernorm_args*>(common);
  Norm p;
  p.bias = static_cast<const float*>(args.bias.data);
  return normalize(entry, args, p, worker);
}

int32_t accepts_rmsnorm(const infeng_problem* p) {
  const bool has_heads = (p->needs & INFENG_NEED_BIT(INFENG_NEED_NORM_HEADS)) != 0;
  return p->op == INFENG_OP_RMSNORM && p->k <= kMostHeld && fuses_only(p, has_heads ? 0 : kFuses);
}
int32_t accepts_layernorm(const infeng_problem* p) {
  return p->op == INFENG_OP_LAYERNORM && p->k <= kMostHeld && fuses_only(p, kFuses);
}

constexpr uint64_t kGather = INFENG_NEED_BIT(INFENG_NEED_ROW_GATHER);

}  // namespace

extern "C" const infeng_kernel cuda_rmsnorm =
    whole_kernel(INFENG_OP_RMSNORM, "rmsnorm", kFuses,
                 kGather | INFENG_NEED_BIT(INFENG_NEED_NORM_HEADS) | INFENG_NEED_BIT(INFENG_NEED_NORM_PLAIN) |
                     INFENG_NEED_BIT(INFENG_NEED_NORM_OFFSET) | kHandlesRoundings,
                 accepts_rmsnorm, run_rmsnorm);
extern "C" const infeng_kernel cuda_layernorm = whole_kernel(
    INFENG_OP_LAYERNORM, "layernorm", kFuses, kGather | kHandlesRoundings, accepts_layernorm, run_layernorm);

}  // namespace infeng_cuda
