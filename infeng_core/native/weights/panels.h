// Writes and reads one panel of 16 outputs; docs/format.md draws each format.
#pragma once

#include <cstdint>

#include "weights/source.h"

namespace infeng {

// Quantizes and lays out rows [row, row + 16) of the source. Throws Error "not_finite" or "out_of_range".
void pack_panel(uint32_t format, const Source& s, int64_t row, uint8_t* out);

// Reads the values with which kernels compute: x[k][n] of inputs [64 g, 64 g + 64) of a panel.
void unpack_group(uint32_t format, const uint8_t* panel, int64_t g, Group x);

}  // namespace infeng
