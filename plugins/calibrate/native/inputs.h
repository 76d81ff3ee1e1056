// The inputs of linear ops as integer kernels read them.
#pragma once

#include <cstdint>

namespace infeng::calibration {

// out = x, (rows, k), rounded to int8 with a scale for every `group` inputs of a row and converted back
// (docs/numerics.md). Values that are not finite stay so. out may be x.
void round_inputs(const float* x, int64_t rows, int64_t k, int64_t group, float* out, int threads);

}  // namespace infeng::calibration
