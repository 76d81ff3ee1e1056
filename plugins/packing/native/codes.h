// Panels from integers and scales that a quantizer chose, and back.
#pragma once

#include <cstdint>

#include "packers.h"

namespace infeng {

// A matrix of integers with its scales, rows contiguous.
struct Codes {
  const int8_t* q;     // (n, k)
  const float* scale;  // (n, groups)
  int64_t n;
  int64_t k;
};

// Throws Error "not_finite" or "out_of_range" unless the scale from `column` on is finite and fits in fp16.
void require_half(float scale, int64_t row, int64_t column);

// Lays out rows [row, row + 16); rows and inputs beyond the matrix are zero. Scales are rounded to fp16 if the grid's
// are. Throws Error "not_finite" or "out_of_range" naming row and column.
void pack_codes(const infeng_format& format, const Codes& codes, int64_t row, uint8_t* panel);

// Reads one panel back: q (16, k) and scale (16, groups).
void unpack_codes(const infeng_format& format, const uint8_t* panel, int64_t k, int8_t* q, float* scale);

}  // namespace infeng
