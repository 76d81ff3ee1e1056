// The target weights of quantization: with the inputs of a quantized model they come nearest to the outputs that the
// unquantized model computes from its own inputs (asymmetric calibration as in GPTAQ, Li et al. 2025, in closed form).
#pragma once

#include <cstdint>

namespace infeng::calibration {

// aimed = w + w drift (h + damping I)^-1, (n, k). drift: (k, k), (Y - X)'X / n for the inputs X of the quantized model
// and Y of the unquantized one. order, l: as in `choose_codes`. The product with drift is binary32, inputs ascending.
// Substitution is binary64, forward in the order of l and backward against it, in blocks of 64 columns: first within
// the block, column by column, then the block's share of all other columns, inputs ascending. Every product is added by
// fma (products.h). Rows are independent.
void aim(const float* w, int64_t n, int64_t k, const double* drift, const int32_t* order, const double* l, float* aimed,
         int threads);

}  // namespace infeng::calibration
