// The weights that codes are to come near: those that make of the inputs of a quantized model what the unquantized one
// makes of its own (asymmetric calibration, as of GPTAQ, Li et al. 2025, in closed form).
#pragma once

#include <cstdint>

namespace infeng::calibration {

// What the rows X that a quantized model reads miss, over n rows of text.
struct Drift {
  const double* inputs;   // (k, k): (Y - X)'X / n, Y what the unquantized model reads
  const double* outputs;  // (n, k): E'X / n, E what is to be added to the outputs beside; null: nothing
};

// aimed = w + (w inputs + outputs) (h + damping I)^-1, (n, k); order and l are those of `choose_codes`. The product
// with inputs in binary32, inputs ascending; substitution in binary64 without contraction, forward in the order of l
// and backward against it, rows by themselves.
void aim(const float* w, int64_t n, int64_t k, const Drift& drift, const int32_t* order, const double* l, float* aimed,
         int threads);

}  // namespace infeng::calibration
