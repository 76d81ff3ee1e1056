// SPDX-License-Identifier: Apache-2.0
#include <infeng/ops/linear_tiles.h>
#include <infeng/simd/amx.h>

using namespace infeng;

// Measured against the AVX-512 VNNI kernels with weights in the third-level cache: 1.05 times as fast at 7 rows, 1.5 at
// 12, 2 at 16.
constexpr int kFewestRows = 7;

#define KERNEL(name, format)                      \
  extern "C" constinit const infeng_kernel name = \
      infeng::kernel<LinearTiles<avx512::Bw, amx::Tiles, format, kFewestRows>>(#name, "");

KERNEL(linear_int8row, Int8Row)
KERNEL(linear_int4g64, Int4G64)
KERNEL(linear_int4g32, Int4G32)
