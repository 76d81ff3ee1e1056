// The kernel table of the NEON library; ops/unit.h names the kernels that vector libraries share.
// SPDX-License-Identifier: Apache-2.0
#include <infeng/ops/library.h>
#include <infeng/ops/unit.h>

// Caches with keys of 4 bits have no products of u8 and s8, so i8mm would add nothing to them.
#define I8MM_KERNELS(X)           \
  X(linear_int8row_i8mm)          \
  X(linear_int8g32_i8mm)          \
  INFENG_INT4_KERNELS(X, i8mm)    \
  INFENG_P32_KERNELS(X, i8mm)     \
  INFENG_AFFINE_KERNELS(X, i8mm)  \
  X(attention_int8_rows_i8mm)     \
  X(attention_int8_splits_i8mm)   \
  X(attention_int8h_rows_i8mm)    \
  X(attention_int8h_splits_i8mm)  \
  X(attention_k8v4h_rows_i8mm)    \
  X(attention_k8v4h_splits_i8mm)  \
  X(attention_int8i_rows_i8mm)    \
  X(attention_int8i_splits_i8mm)  \
  X(attention_int8hi_rows_i8mm)   \
  X(attention_int8hi_splits_i8mm) \
  X(attention_k8v4hi_rows_i8mm)   \
  X(attention_k8v4hi_splits_i8mm) \
  X(shrink_int8_i8mm)

#define KERNELS(X)                  \
  INFENG_PLAIN_KERNELS(X)           \
  INFENG_UNIT_KERNELS(X, dotprod)   \
  INFENG_P32_KERNELS(X, dotprod)    \
  INFENG_AFFINE_KERNELS(X, dotprod) \
  I8MM_KERNELS(X)

INFENG_LIBRARY("neon", INFENG_NEON_VERSION, KERNELS)
