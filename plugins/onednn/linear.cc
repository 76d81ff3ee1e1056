// linear over bf16 and f32 weights: one product of oneDNN, then the steps behind it. Class approx: oneDNN adds in an
// order of its own, and bf16 weights meet inputs that are rounded to bf16. SPDX-License-Identifier: Apache-2.0
#include <infeng/ops/args.h>
#include <stdlib.h>
#include <string.h>

#include <new>

#include "epilogues.h"
#include "matmul.h"
#include "team.h"

namespace infeng::onednn {
namespace {

// Ranges of rows that end here are left to other kernels: a linear with few rows is bound by the memory of its weight.
constexpr int64_t kFewRows = 64;

constexpr int64_t size_of(Type type) { return type == Type::f32 ? 4 : 2; }
uint32_t format_of(Type type) { return type == Type::f32 ? INFENG_WEIGHT_F32 : INFENG_WEIGHT_BF16; }
constexpr uint64_t layout_of(Type type) { return uint64_t(type) + 1; }  // 0 is the format's own
Shape shape_of(Type type, const infeng_weight& weight) { return {weight.panels * kLanes, weight.k, type}; }

struct Instance {
  Instance(const Shape& shape, int workers, int64_t bytes) : products(shape), threads(workers), finishing(bytes) {}
  Products products;
  int threads;
  int64_t finishing;  // bytes of scratch memory for the steps, a thread
};

// Scratch memory of a call: x in bf16, the product before its steps, and what the steps of each thread need.
struct Scratch {
  int64_t product, finishing, total;
  Scratch(Type type, int64_t rows, int64_t n, int64_t k, int64_t threads, int64_t finishing_bytes) {
    product = type == Type::bf16 ? round_up(rows * k * size_of(type), kLine) : 0;
    finishing = product + round_up(rows * n * int64_t(sizeof(float)), kLine);
    total = finishing + threads * finishing_bytes;
  }
};

template <Type T>
int32_t accepts(const infeng_problem* p) {
  return p->op == INFENG_OP_LINEAR && p->weight_format == format_of(T) && p->act_format == INFENG_ACT_F32 &&
         p->rows_max > kFewRows && finishes(*p) && vendor() != nullptr;
}

template <Type T>
infeng_status workspace(const infeng_problem* p, infeng_workspace* out) {
  out->align = kLine;
  out->shared = Scratch(T, p->rows_max, round_up(p->n, kLanes), p->k, p->workers, finishing_bytes(*p)).total;
  out->per_worker = 0;
  return INFENG_OK;
}

template <Type T>
infeng_status create(const infeng_problem* p, void** instance, infeng_worker* worker) {
  *instance = new (std::nothrow) Instance({round_up(p->n, kLanes), p->k, T}, p->workers, finishing_bytes(*p));
  return *instance ? INFENG_OK : fail(worker, INFENG_INTERNAL, "no memory for a product of oneDNN");
}

void destroy(void* instance) { delete static_cast<Instance*>(instance); }

int64_t tiles(const infeng_args* args, int32_t) { return args->rows == 0 ? 0 : 1; }

struct Call {
  Type type;
  const infeng_linear_args& args;
  infeng_worker* worker;
  infeng_status status;
};

void multiply(void* context) {
  auto& call = *static_cast<Call*>(context);
  const infeng_linear_args& args = call.args;
  auto& instance = *static_cast<Instance*>(args.common.instance);
  const Shape shape = shape_of(call.type, *args.weight);
  const int64_t rows = args.common.rows;
  const Scratch at(call.type, rows, shape.n, shape.k, instance.threads, instance.finishing);
  char* scratch = static_cast<char*>(call.worker->shared);
  const bool is_last = args.common.epilogue_count == 0;
  infeng_tensor product = {scratch + at.product, INFENG_F32, INFENG_DEVICE_CPU, 0, 2, {rows, shape.n}, {shape.n, 1}};
  if (is_last) product = args.out;
  if (!instance.products.run(rows, row_of<float>(args.in->x, 0), args.in->x.strides[0], scratch, args.weight->data,
                             row_of<float>(product, 0), product.strides[0])) {
    call.status = fail(call.worker, INFENG_INTERNAL, "oneDNN could not multiply");
  } else if (!is_last) {
    call.status = finish(args, product, scratch + at.finishing, instance.finishing, instance.threads, call.worker);
  }
}

template <Type T>
infeng_status run(const infeng_args* common, int32_t, int64_t, int64_t, infeng_worker* worker) {
  const auto& args = *(const infeng_linear_args*)common;
  if (args.weight->layout != layout_of(T) || common->instance == nullptr)
    return fail(worker, INFENG_INVALID_ARGUMENT, "weight is not packed for oneDNN");
  Call call = {T, args, worker, INFENG_OK};
  if (!run_in_team(static_cast<Instance*>(common->instance)->threads, &multiply, &call))
    return fail(worker, INFENG_INTERNAL, "the system has no more threads");
  return call.status;
}

template <Type T>
int64_t pack_size(const infeng_weight* weight, uint64_t* layout) {
  *layout = layout_of(T);
  if (weight->format != format_of(T) || weight->layout != 0) return 0;
  const dnnl_memory_desc_t packed = packed_weight(shape_of(T, *weight));
  if (packed == nullptr) return 0;
  const int64_t bytes = int64_t(vendor()->dnnl_memory_desc_get_size(packed));
  vendor()->dnnl_memory_desc_destroy(packed);
  return bytes;
}

// Panels of 16 outputs as k lines of n values, one value of T each.
template <Type T>
void flatten(const infeng_weight& weight, char* plain) {
  constexpr int64_t kSize = size_of(T), kStep = 4 / kSize;  // a line of a panel has kStep k
  const int64_t n = weight.panels * kLanes;
  for (int64_t p = 0; p < weight.panels; ++p) {
    const char* panel = (const char*)weight.data + p * weight.panel_bytes;
    for (int64_t k = 0; k < weight.k; ++k)
      for (int64_t lane = 0; lane < kLanes; ++lane)
        memcpy(plain + (k * n + p * kLanes + lane) * kSize,
               panel + ((k / kStep * kLanes + lane) * kStep + k % kStep) * kSize, kSize);
  }
}

struct Packing {
  Shape shape;
  const void* plain;
  void* out;
  bool done;
};

void pack_in_team(void* context) {
  auto& packing = *static_cast<Packing*>(context);
  packing.done = pack(packing.shape, packing.plain, packing.out);
}

template <Type T>
infeng_status pack_weight(const infeng_weight* weight, void* out, int64_t out_bytes, infeng_worker* worker) {
  uint64_t layout;
  if (out_bytes < pack_size<T>(weight, &layout)) return fail(worker, INFENG_INVALID_ARGUMENT, "no room for the weight");
  const Shape shape = shape_of(T, *weight);
  char* plain = static_cast<char*>(malloc(size_t(shape.n * shape.k * size_of(T))));
  if (plain == nullptr) return fail(worker, INFENG_INTERNAL, "no memory to pack a weight for oneDNN");
  flatten<T>(*weight, plain);
  Packing packing = {shape, plain, out, false};
  const bool ran = run_in_team(1, &pack_in_team, &packing);
  free(plain);
  return ran && packing.done ? INFENG_OK : fail(worker, INFENG_INTERNAL, "oneDNN could not pack a weight");
}

template <Type T>
constexpr infeng_kernel kernel_of(const char* name, const char* features) {
  infeng_kernel kernel = {};
  kernel.struct_size = sizeof kernel;
  kernel.op = INFENG_OP_LINEAR;
  kernel.name = name;
  kernel.features = features;
  kernel.numerics = INFENG_NUMERICS_APPROX;
  kernel.bound = T == Type::f32 ? 0x1p-14f : 0x1p-6f;
  kernel.kind = INFENG_KIND_WHOLE;
  kernel.fuses = kFuses;
  // A gate with limits lets through any part of a product's error: what is small beside the product may be as large as
  // the result.
  kernel.handles = kHandles & ~INFENG_NEED_BIT(INFENG_NEED_FUNCTION(INFENG_FUNCTION_SWIGLU));
  kernel.accepts = accepts<T>;
  kernel.workspace = workspace<T>;
  kernel.create = create<T>;
  kernel.destroy = destroy;
  kernel.tiles = tiles;
  kernel.run = run<T>;
  kernel.pack_size = pack_size<T>;
  kernel.pack = pack_weight<T>;
  return kernel;
}

}  // namespace
}  // namespace infeng::onednn

using infeng::onednn::kernel_of;
using infeng::onednn::Type;

extern "C" constinit const infeng_kernel linear_f32 = kernel_of<Type::f32>("linear_f32", "");
// oneDNN's own loops for bf16 begin with AVX-512.
extern "C" constinit const infeng_kernel linear_bf16 = kernel_of<Type::bf16>("linear_bf16", "avx512bw");
