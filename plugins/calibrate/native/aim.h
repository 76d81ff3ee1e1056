// The weights that codes are to come near: those that make of the inputs of a quantized model what the unquantized one
// makes of its own (asymmetric calibration, as of GPTAQ, Li et al. 2025, in closed form).
#pragma once

#include <cstdint>

namespace infeng::calibration {

// aimed = w + w drift (h + damping I)^-1, (n, k); drift is (k, k): (Y - X)'X / n of the rows X that a quantized model
// reads and Y that the unquantized one does; order and l are those of `choose_codes`. The product with drift in
// binary32, inputs ascending; substitution in binary64, forward in the order of l and backward against it, in blocks of
// 64 columns: first the block by column, each taking away what those before it ask for, then its share of all others,
// inputs ascending. Every product is added by fma (products.h). Rows by themselves.
void aim(const float* w, int64_t n, int64_t k, const double* drift, const int32_t* order, const double* l, float* aimed,
         int threads);

}  // namespace infeng::calibration
