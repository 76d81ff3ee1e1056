// SPDX-License-Identifier: Apache-2.0
#include <infeng/ops/linear_tiles.h>
#include <infeng/simd/amx.h>

using namespace infeng;

// Speed against the AVX-512 VNNI kernels with weights in the L3 cache: half at 4 rows, equal at 7, 1.5 times at 12,
// twice at 16. A kernel serves a range of rows, 2 to 8 or 9 to 64.
constexpr int kFewestRows = 9;

#define KERNEL(name, format)                      \
  extern "C" constinit const infeng_kernel name = \
      infeng::kernel<LinearTiles<avx512::Bw, amx::Tiles, format, kFewestRows>>(#name, "");

KERNEL(linear_int8row, Int8Row)
KERNEL(linear_int8g32, Int8G32)
KERNEL(linear_int4g64, Int4G64)
KERNEL(linear_int4g32, Int4G32)
KERNEL(linear_int4p32, Int4P32)
KERNEL(linear_int5p32, Int5P32)
KERNEL(linear_int6p32, Int6P32)
