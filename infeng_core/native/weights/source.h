// A matrix of weights as a checkpoint holds it, read in groups of 64 inputs by 16 outputs.
#pragma once

#include <cstdint>

#include "weights/quantize.h"
#include "weights/weight.h"

namespace infeng {

enum class Element { f32, f16, bf16 };

// A matrix (n, k) of which a row is contiguous.
struct Source {
  const char* data;
  int64_t n;
  int64_t k;
  int64_t row_bytes;  // from one row to the next
  Element element;
};

using Group = float[kGroup][kLanes];

// x[k][n] = inputs [column, column + 64) of 16 rows from `row` on; zero outside the matrix. Throws Error "not_finite"
// that names the row and the column.
void load_group(const Source& s, int64_t row, int64_t column, Group x);

}  // namespace infeng
