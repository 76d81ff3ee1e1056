// A product with all of its steps: a kernel applies the first ones itself, EPILOGUE the others.
#pragma once

#include "flatten.h"

namespace infeng_cuda {

// Steps of a LINEAR: those that its kernels apply, and LORA, QUANTIZE and what follows, which EPILOGUE does.
constexpr uint32_t kProductSteps =
    kFusedSteps | INFENG_EPILOGUE_BIT(INFENG_EPILOGUE_LORA) | INFENG_EPILOGUE_BIT(INFENG_EPILOGUE_QUANTIZE);
constexpr uint64_t kProductNeeds = kFunctions | function_bit(INFENG_FUNCTION_WIDE) | function_bit(INFENG_FUNCTION_ROW) |
                                   INFENG_NEED_BIT(INFENG_NEED_LORA_F32) | INFENG_NEED_BIT(INFENG_NEED_LORA_BF16) |
                                   INFENG_NEED_BIT(INFENG_NEED_LORA_I8);

bool takes_product_steps(const infeng_problem* problem);

class Product {
 public:
  // Checks the call, and sets the steps of the kernel and its result: `out`, or memory between it and EPILOGUE.
  infeng_status begin(const infeng_linear_args& args, Steps* steps, Matrix* out, infeng_worker* worker);
  // Queues EPILOGUE if it has steps.
  infeng_status end(const infeng_linear_args& args, infeng_worker* worker) const;

 private:
  static constexpr uint32_t kMost = 16;  // steps of a list

  const infeng_epilogue* list_[kMost];  // of the call, without LORA where no row has an adapter
  uint32_t count_ = 0;
  uint32_t first_ = 0;  // of EPILOGUE's steps
  Matrix between_;
};

}  // namespace infeng_cuda
