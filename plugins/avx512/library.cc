// The kernel table of the AVX-512 library; ops/unit.h names the kernels that vector libraries share.
// SPDX-License-Identifier: Apache-2.0
#include <infeng/ops/library.h>
#include <infeng/ops/unit.h>

#define KERNELS(X)             \
  INFENG_PLAIN_KERNELS(X)      \
  INFENG_UNIT_KERNELS(X, bw)   \
  INFENG_UNIT_KERNELS(X, vnni) \
  INFENG_INT4_KERNELS(X, gfni) \
  INFENG_P32_KERNELS(X, bw)    \
  INFENG_P32_KERNELS(X, vnni)  \
  INFENG_AFFINE_KERNELS(X, bw) \
  INFENG_AFFINE_KERNELS(X, vnni)

INFENG_LIBRARY("avx512", INFENG_AVX512_VERSION, KERNELS)
