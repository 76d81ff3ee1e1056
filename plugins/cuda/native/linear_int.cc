// LINEAR over int4-p32, int5-p32, int6-p32 and int8-row weights.
#include "../kernels/linear_int.h"

#include "product.h"

namespace infeng_cuda {
namespace {

// The kernels of a format: for 8, 16 and 32 rows at a time, and for many.
struct Kernels {
  Entry few_row[3], few_group[3];
  Entry many_row_128, many_row_64, many_group_64;
};

#define INFENG_LINEAR_INT(format)                                                                               \
  {{{"linear_few_" format "_row_8"}, {"linear_few_" format "_row_16"}, {"linear_few_" format "_row_32"}},       \
   {{"linear_few_" format "_group_8"}, {"linear_few_" format "_group_16"}, {"linear_few_" format "_group_32"}}, \
   {"linear_many_" format "_row_128"},                                                                          \
   {"linear_many_" format "_row_64"},                                                                           \
   {"linear_many_" format "_group_64"}}

Kernels kInt4 = INFENG_LINEAR_INT("int4p32"), kInt5 = INFENG_LINEAR_INT("int5p32");
Kernels kInt6 = INFENG_LINEAR_INT("int6p32"), kInt8 = INFENG_LINEAR_INT("int8row");

constexpr int64_t kFewRows = 64;  // at most, in a block or in two that share the weights in the L2 cache
constexpr int64_t kAlwaysFew = 16;

infeng_status run_few(Kernels& kernels, LinearInt& p, infeng_worker* worker) {
  const int size = p.rows <= 8 ? 0 : p.rows <= 16 ? 1 : 2, rows = 8 << size;
  const bool whole = p.wide == 0;
  p.row_tiles = static_cast<int32_t>(ceil_div(p.rows, rows));
  const int64_t blocks = ceil_div(p.weight.count, kFewPanels) * p.row_tiles;
  // Where a multiprocessor has one block, more warps keep more reads running.
  constexpr int kMostWarps[] = {16, 12, 8};
  const int warps = p.groups > 16 && blocks <= multiprocessors() ? kMostWarps[size] : 8;
  Entry& entry = (whole ? kernels.few_row : kernels.few_group)[size];
  return launch(entry, {blocks}, static_cast<unsigned>(32 * warps), p, worker, few_shared(rows, warps, whole));
}

infeng_status run_many(Kernels& kernels, LinearInt& p, infeng_worker* worker) {
  const int64_t column_tiles = ceil_div(p.weight.count, kManyPanels);
  const bool large = p.wide == 0 && ceil_div(p.rows, 128) * column_tiles >= 2 * multiprocessors();
  const int rows = large ? 128 : 64;
  p.row_tiles = static_cast<int32_t>(ceil_div(p.rows, rows));
  Entry& entry = large ? kernels.many_row_128 : p.wide == 0 ? kernels.many_row_64 : kernels.many_group_64;
  return launch(entry, {p.row_tiles * column_tiles}, 128, p, worker, many_shared(rows));
}

template <Kernels& kernels>
infeng_status run(const infeng_args* common, int32_t, int64_t, int64_t, infeng_worker* worker) {
  const auto* args = reinterpret_cast<const infeng_linear_args*>(common);
  LinearInt p;
  Product product;
  if (const infeng_status status = product.begin(*args, &p.steps, &p.out, worker)) return status;
  p.in = rows8_of(*args->in);
  p.weight = panels_of(*args->weight);
  p.rows = static_cast<int32_t>(common->rows);
  p.groups = static_cast<int32_t>(ceil_div(args->weight->k, 64));
  p.wide = args->in->group == INFENG_GROUP_ROW ? 0 : static_cast<int32_t>(args->in->group / 64);
  if (p.rows == 0) return INFENG_OK;
  const bool fills = ceil_div(p.weight.count, kManyPanels) * ceil_div(p.rows, 64) >= multiprocessors();
  const bool few = p.rows <= kAlwaysFew || (p.rows <= kFewRows && !fills);
  const infeng_status status = few ? run_few(kernels, p, worker) : run_many(kernels, p, worker);
  return status != INFENG_OK ? status : product.end(*args, worker);
}

template <uint32_t weight>
int32_t accepts(const infeng_problem* p) {
  const bool wide = weight != INFENG_WEIGHT_INT8_ROW &&
                    (p->act_format == INFENG_ACT_INT8_G128 || p->act_format == INFENG_ACT_INT8_G256);
  const bool reads = wide || p->act_format == INFENG_ACT_INT8_G64 || p->act_format == INFENG_ACT_INT8_ROW;
  return p->op == INFENG_OP_LINEAR && p->weight_format == weight && reads && takes_product_steps(p);
}

}  // namespace

#define INFENG_KERNEL(format, number, kernels)          \
  extern "C" const infeng_kernel cuda_linear_##format = \
      whole_kernel(INFENG_OP_LINEAR, "linear_" #format, kProductSteps, kProductNeeds, accepts<number>, run<kernels>)
INFENG_KERNEL(int4p32, INFENG_WEIGHT_INT4_P32, kInt4);
INFENG_KERNEL(int5p32, INFENG_WEIGHT_INT5_P32, kInt5);
INFENG_KERNEL(int6p32, INFENG_WEIGHT_INT6_P32, kInt6);
INFENG_KERNEL(int8row, INFENG_WEIGHT_INT8_ROW, kInt8);

}  // namespace infeng_cuda
