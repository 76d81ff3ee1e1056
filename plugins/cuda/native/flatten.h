// From argument structs, which point at each other, to parameters of a launch, which do not.
#pragma once

#include <infeng/abi.h>

#include "../kernels/params.h"
#include "device.h"

namespace infeng_cuda {

constexpr uint32_t kFusedSteps =
    INFENG_EPILOGUE_BIT(INFENG_EPILOGUE_BIAS) | INFENG_EPILOGUE_BIT(INFENG_EPILOGUE_ROW_SCALE) |
    INFENG_EPILOGUE_BIT(INFENG_EPILOGUE_RESIDUAL) | INFENG_EPILOGUE_BIT(INFENG_EPILOGUE_GATED_MUL) |
    INFENG_EPILOGUE_BIT(INFENG_EPILOGUE_SCALE) | INFENG_EPILOGUE_BIT(INFENG_EPILOGUE_SOFTCAP) |
    INFENG_EPILOGUE_BIT(INFENG_EPILOGUE_ACTIVATE) | INFENG_EPILOGUE_BIT(INFENG_EPILOGUE_MUL);

constexpr uint64_t function_bit(uint32_t function) { return INFENG_NEED_BIT(INFENG_NEED_FUNCTION(function)); }
constexpr uint64_t kFunctions = function_bit(INFENG_FUNCTION_SILU) | function_bit(INFENG_FUNCTION_GELU) |
                                function_bit(INFENG_FUNCTION_GELU_TANH) | function_bit(INFENG_FUNCTION_RELU2) |
                                function_bit(INFENG_FUNCTION_SIGMOID) | function_bit(INFENG_FUNCTION_SWIGLU);

// Whether all steps of a problem are in `mask`, and few enough for a launch.
inline bool fuses_only(const infeng_problem* problem, uint32_t mask) {
  if (problem->epilogue_count > static_cast<uint32_t>(kMostSteps)) return false;
  for (uint32_t i = 0; i < problem->epilogue_count; ++i) {
    const uint32_t kind = problem->epilogues[i]->kind;
    if (kind > 31 || (mask & INFENG_EPILOGUE_BIT(kind)) == 0) return false;
  }
  return true;
}

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Fills `out` from the list of a call; false for a step that is not in kFusedSteps, a second GATED_MUL or too many.
bool flatten_steps(const infeng_args* args, Steps* out);

Matrix matrix_of(const infeng_tensor& tensor);  // (rows, columns) f32; without data all 0
Rows8 rows8_of(const infeng_activation& activation);
Panels panels_of(const infeng_weight& weight);

inline int64_t one_tile(const infeng_args*, int32_t) { return 1; }

// A kernel of this library: exact, whole, for any processor of the host.
constexpr infeng_kernel whole_kernel(uint32_t op, const char* name, uint32_t fuses, uint64_t handles,
                                     int32_t (*accepts)(const infeng_problem*),
                                     infeng_status (*run)(const infeng_args*, int32_t, int64_t, int64_t,
                                                          infeng_worker*)) {
  infeng_kernel kernel{};
  kernel.struct_size = sizeof(infeng_kernel);
  kernel.op = op;
  kernel.name = name;
  kernel.features = "";
  kernel.numerics = INFENG_NUMERICS_EXACT;
  kernel.kind = INFENG_KIND_WHOLE;
  kernel.fuses = fuses;
  kernel.handles = handles;
  kernel.accepts = accepts;
  kernel.tiles = one_tile;
  kernel.run = run;
  return kernel;
}

}  // namespace infeng_cuda
