#include "product.h"

#include <infeng/ops/tensor.h>

#include "kernels.h"

namespace infeng_cuda {

bool takes_product_steps(const infeng_problem* problem) {
  for (uint32_t i = 0; i < problem->epilogue_count; ++i) {
    const uint32_t kind = problem->epilogues[i]->kind;
    if (kind > 31 || (kProductSteps & INFENG_EPILOGUE_BIT(kind)) == 0) return false;
  }
  return true;
}

infeng_status Product::begin(const infeng_linear_args& args, Steps* steps, Matrix* out, infeng_worker* worker) {
  if (args.weight->layout != 0) return fail(worker, INFENG_INVALID_ARGUMENT, "weight is not in a native layout");
  if (args.common.epilogue_count > kMost) return fail(worker, INFENG_INVALID_ARGUMENT, "a list of too many steps");
  for (uint32_t i = 0; i < args.common.epilogue_count; ++i) {
    const infeng_epilogue* const step = args.common.epilogues[i];
    const bool is_lora = step->kind == INFENG_EPILOGUE_LORA;
    const bool is_idle = is_lora && reinterpret_cast<const infeng_lora_epilogue*>(step)->segment_count == 0;
    if (!is_idle) list_[count_++] = step;
  }
  infeng_args fused = args.common;
  fused.epilogues = list_;
  int64_t columns = args.weight->panels * 16;
  for (; first_ < count_ && first_ < static_cast<uint32_t>(kMostSteps); ++first_) {
    const uint32_t kind = list_[first_]->kind;
    if (kind == INFENG_EPILOGUE_LORA || kind == INFENG_EPILOGUE_QUANTIZE) break;
    if (kind == INFENG_EPILOGUE_GATED_MUL) columns /= 2;
  }
  fused.epilogue_count = first_;
  if (!flatten_steps(&fused, steps)) return fail(worker, INFENG_INVALID_ARGUMENT, "a step that no kernel fuses");
  *out = matrix_of(args.out);
  if (first_ == count_ || args.common.rows == 0) return INFENG_OK;
  void* const memory = scratch(args.common.rows * columns * 4, worker, Scratch::product);
  if (memory == nullptr) return INFENG_OUT_OF_RANGE;
  *out = between_ = {static_cast<float*>(memory), columns, static_cast<int32_t>(columns)};
  return INFENG_OK;
}

infeng_status Product::end(const infeng_linear_args& args, infeng_worker* worker) const {
  if (first_ == count_) return INFENG_OK;
  infeng_epilogue_args rest{};
  rest.common = args.common;
  rest.common.struct_size = sizeof rest;
  rest.common.epilogues = list_ + first_;
  rest.common.epilogue_count = count_ - first_;
  rest.in = infeng_matrix(between_.data, INFENG_F32, args.common.rows, between_.columns, between_.stride);
  rest.out = args.out;
  return cuda_epilogue.run(&rest.common, 0, 0, 1, worker);
}

}  // namespace infeng_cuda
