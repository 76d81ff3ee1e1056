// Reads one panel of 16 outputs; docs/format.md draws each format.
#pragma once

#include <infeng/extension/panel.h>

#include <cstdint>

namespace infeng {

// Reads the values with which kernels compute: x[k][n] of inputs [64 g, 64 g + 64) of a panel.
void unpack_group(uint32_t format, const uint8_t* panel, int64_t g, Group x);

}  // namespace infeng
