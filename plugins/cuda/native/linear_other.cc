// LINEAR over f32, bf16, int4-g64, int4-g32, int8-g32, int4-a128 and int4-a256 weights.
#include "../kernels/linear_other.h"

#include <algorithm>

#include "product.h"

namespace infeng_cuda {
namespace {

// What the parameters of both kinds of kernels have in common.
template <class Params>
infeng_status flatten(const infeng_linear_args& args, Params& p, Product& product, infeng_worker* worker) {
  p.weight = panels_of(*args.weight);
  p.rows = static_cast<int32_t>(args.common.rows);
  return product.begin(args, &p.steps, &p.out, worker);
}

template <class Params>
int64_t tile(Params& p, int64_t rows) {
  p.row_tiles = static_cast<int32_t>(ceil_div(p.rows, rows));
  return p.row_tiles * ceil_div(p.weight.count, kOtherPanels);
}

struct Floats {
  int inputs_a_word;
  Entry entries[3];  // one for each shape
};
Floats kF32{1, {{"linear_f32_2"}, {"linear_f32_4"}, {"linear_f32_8"}}};
Floats kBf16{2, {{"linear_bf16_2"}, {"linear_bf16_4"}, {"linear_bf16_8"}}};

template <Floats& kernels>
infeng_status run_floats(const infeng_args* common, int32_t, int64_t, int64_t, infeng_worker* worker) {
  const auto& args = *reinterpret_cast<const infeng_linear_args*>(common);
  LinearFloat p;
  Product product;
  if (const infeng_status status = flatten(args, p, product, worker)) return status;
  p.x = matrix_of(args.in->x);
  p.is_aligned = reinterpret_cast<uintptr_t>(p.x.data) % 16 == 0 && p.x.stride % 4 == 0 ? 1 : 0;
  const int size = p.rows <= 8 ? 0 : p.rows <= 32 ? 1 : 2;
  const FloatShape& shape = kFloatShapes[size];
  // Few rows take fewer warps for their sums, but the others help to copy.
  const int64_t warps = std::clamp<int64_t>(ceil_div(p.rows, shape.rows), 4, kFloatThreads / 32);
  const infeng_status status =
      launch(kernels.entries[size], {tile(p, warps * shape.rows)}, static_cast<unsigned>(32 * warps), p, worker,
             shape.shared(static_cast<int>(warps), kernels.inputs_a_word));
  return status != INFENG_OK ? status : product.end(args, worker);
}

struct Groups {
  bool has_two;      // sums of a group
  Entry entries[3];  // for 8, 16 and 32 rows at a time
};
#define INFENG_GROUPS(name, has_two)                                                   \
  {                                                                                    \
    has_two, { {"linear_" name "_8"}, {"linear_" name "_16"}, {"linear_" name "_32"} } \
  }
Groups kInt4G64 = INFENG_GROUPS("int4g64", false), kInt4G32 = INFENG_GROUPS("int4g32", true);
Groups kInt8G32 = INFENG_GROUPS("int8g32", true), kInt4A128 = INFENG_GROUPS("int4a128", true);
Groups kInt4A256 = INFENG_GROUPS("int4a256", true);

template <int n>
constexpr int64_t kSlotBytes[3] = {sizeof(GroupSlot<n, 8>), sizeof(GroupSlot<n, 16>), sizeof(GroupSlot<n, 32>)};

template <Groups& kernels>
infeng_status run_groups(const infeng_args* common, int32_t, int64_t, int64_t, infeng_worker* worker) {
  const auto& args = *reinterpret_cast<const infeng_linear_args*>(common);
  LinearGroup p;
  Product product;
  if (const infeng_status status = flatten(args, p, product, worker)) return status;
  p.in = rows8_of(*args.in);
  p.groups = static_cast<int32_t>(ceil_div(args.weight->k, 64));
  const int size = p.rows <= 8 ? 0 : p.rows <= 16 ? 1 : 2;
  const int warps = size < 2 && p.groups > 8 ? 16 : 8;  // a multiple of the groups of a superblock
  const int64_t shared = warps * (kernels.has_two ? kSlotBytes<2> : kSlotBytes<1>)[size];
  const infeng_status status =
      launch(kernels.entries[size], {tile(p, 8 << size)}, static_cast<unsigned>(32 * warps), p, worker, shared);
  return status != INFENG_OK ? status : product.end(args, worker);
}

template <uint32_t weight, uint32_t act>
int32_t accepts(const infeng_problem* p) {
  return p->op == INFENG_OP_LINEAR && p->weight_format == weight && p->act_format == act && takes_product_steps(p);
}

}  // namespace

#define INFENG_KERNEL(format, number, act, run)         \
  extern "C" const infeng_kernel cuda_linear_##format = \
      whole_kernel(INFENG_OP_LINEAR, "linear_" #format, kProductSteps, kProductNeeds, accepts<number, act>, run)
INFENG_KERNEL(f32, INFENG_WEIGHT_F32, INFENG_ACT_F32, run_floats<kF32>);
INFENG_KERNEL(bf16, INFENG_WEIGHT_BF16, INFENG_ACT_F32, run_floats<kBf16>);
INFENG_KERNEL(int4g64, INFENG_WEIGHT_INT4_G64, INFENG_ACT_INT8_G64, run_groups<kInt4G64>);
INFENG_KERNEL(int4g32, INFENG_WEIGHT_INT4_G32, INFENG_ACT_INT8_G64, run_groups<kInt4G32>);
INFENG_KERNEL(int8g32, INFENG_WEIGHT_INT8_G32, INFENG_ACT_INT8_G64, run_groups<kInt8G32>);
INFENG_KERNEL(int4a128, INFENG_WEIGHT_INT4_A128, INFENG_ACT_INT8_G64, run_groups<kInt4A128>);
INFENG_KERNEL(int4a256, INFENG_WEIGHT_INT4_A256, INFENG_ACT_INT8_G64, run_groups<kInt4A256>);

}  // namespace infeng_cuda
