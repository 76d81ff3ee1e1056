// Target weights of quantization: on the inputs of the quantized model they give the outputs of the unquantized model
// on its own inputs (asymmetric calibration as in GPTAQ, Li et al. 2025, in closed form).
#pragma once

#include <cstdint>

namespace infeng::calibration {

// aimed = w + w drift (h + damping I)^-1, (n, k); drift, (k, k), is (Y - X)'X / n for inputs X of the quantized model
// and Y of the unquantized one; order and l are as in `choose_codes`. The product with drift is in binary32, inputs
// ascending. The substitution is in binary64, forward in the order of l and then backward, in blocks of 64 columns:
// first within the block, column by column, then its share of all other columns, inputs ascending. Every product is
// added by fma (products.h). Rows are independent.
void aim(const float* w, int64_t n, int64_t k, const double* drift, const int32_t* order, const double* l, float* aimed,
         int threads);

}  // namespace infeng::calibration
