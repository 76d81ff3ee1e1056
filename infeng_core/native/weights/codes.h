// Integers and scales that are known already, laid out as panels and read back: the door of every quantizer.
#pragma once

#include <cstdint>

#include "weights/formats.h"

namespace infeng {

// NULL for a format that stores no integers, or whose layout only its library knows.
const CodeGrid* code_grid(uint32_t format);

// A matrix (n, k) of integers and its scales (n, groups), rows contiguous.
struct Codes {
  const int8_t* q;
  const float* scale;
  int64_t n;
  int64_t k;
};

// Lays out rows [row, row + 16); rows and inputs outside of the matrix are zero. Scales are rounded to fp16 where the
// grid says so. Throws Error "not_finite" and "out_of_range" that name row and column.
void pack_codes(uint32_t format, const Codes& codes, int64_t row, uint8_t* panel);

// The opposite: q (16, k) and scale (16, groups) of one panel.
void unpack_codes(uint32_t format, const uint8_t* panel, int64_t k, int8_t* q, float* scale);

// NULL for a format without integer sub-scales.
const SubScaling* sub_scaling(uint32_t format);

// NULL for a format without minima.
const MinimaScaling* minima_scaling(uint32_t format);

// Lays out rows [row, row + 16) of units; rows and inputs outside of the matrix are zero. Throws Error "not_finite" and
// "out_of_range" that name row and column.
void pack_units(uint32_t format, const Units& units, int64_t row, uint8_t* panel);
void pack_units(uint32_t format, const MinimaUnits& units, int64_t row, uint8_t* panel);

}  // namespace infeng
