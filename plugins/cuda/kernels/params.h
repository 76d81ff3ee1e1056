// Parameters that several kernels share. They are copied into a launch, so they hold plain numbers and addresses of the
// device's memory.
#pragma once

#include <cstdint>

namespace infeng_cuda {

// One step behind a product, but for LORA and QUANTIZE. `kind` and `function` are numbers of abi.h.
struct Step {
  uint32_t kind = 0;
  uint32_t function = 0;
  float scalar = 0;
  float limit = 0;
  const float* data = nullptr;  // a vector, or a matrix with `stride`
  int64_t stride = 0;
  int32_t columns = 0;  // of `data`; the others are padding and stay as they are
};

constexpr int kMostSteps = 6;

struct Steps {
  int32_t count = 0;
  int32_t gated = -1;  // the place of GATED_MUL; -1: none
  Step list[kMostSteps];
};

struct Matrix {
  float* data = nullptr;
  int64_t stride = 0;
  int32_t columns = 0;
};

// int8 rows as infeng_activation has them.
struct Rows8 {
  const int8_t* q = nullptr;
  const float* scale = nullptr;
  const int32_t* sum = nullptr;
  int64_t q_stride = 0;
  int64_t scale_stride = 0;
  int64_t sum_stride = 0;
};

// A packed weight; panel p starts at data + p * panel_bytes.
struct Panels {
  const uint8_t* data = nullptr;
  int64_t panel_bytes = 0;
  int32_t k = 0;
  int32_t count = 0;
};

}  // namespace infeng_cuda
