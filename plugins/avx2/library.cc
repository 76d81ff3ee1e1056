// The kernel table of the AVX2 library; ops/unit.h names the kernels that vector libraries share.
// SPDX-License-Identifier: Apache-2.0
#include <infeng/ops/library.h>
#include <infeng/ops/unit.h>

#define KERNELS(X)                  \
  INFENG_PLAIN_KERNELS(X)           \
  INFENG_UNIT_KERNELS(X, maddubs)   \
  INFENG_P32_KERNELS(X, maddubs)    \
  INFENG_AFFINE_KERNELS(X, maddubs) \
  INFENG_UNIT_KERNELS(X, vnni)      \
  INFENG_P32_KERNELS(X, vnni)       \
  INFENG_AFFINE_KERNELS(X, vnni)

INFENG_LIBRARY("avx2", INFENG_AVX2_VERSION, KERNELS)
