// A matrix of weights in a checkpoint, read in groups of 64 inputs by 16 outputs.
#pragma once

#include <cstdint>

#include "quantize.h"

namespace infeng {

enum class Element { f32, f16, bf16 };

// A matrix (n, k) with contiguous rows.
struct Source {
  const char* data;
  int64_t n;
  int64_t k;
  int64_t row_bytes;  // from one row to the next
  Element element;
};

// Loads x[k][n]: inputs [column, column + 64) of rows [row, row + 16), zero beyond the matrix. Throws Error
// "not_finite" naming row and column.
void load_group(const Source& s, int64_t row, int64_t column, Group x);

}  // namespace infeng
