// The kernel table of the AVX-512 library. One line here registers a kernel. SPDX-License-Identifier: Apache-2.0
#include <infeng/ops/library.h>

#define KERNELS(X)              \
  X(embed_f32)                  \
  X(embed_bf16)                 \
  X(embed_int8row)              \
  X(embed_int4g64)              \
  X(embed_int4g32)              \
  X(rmsnorm)                    \
  X(linear_f32)                 \
  X(linear_bf16)                \
  X(linear_int8row_bw)          \
  X(linear_int4g64_bw)          \
  X(linear_int4g32_bw)          \
  X(linear_int8row_vnni)        \
  X(linear_int4g64_vnni)        \
  X(linear_int4g32_vnni)        \
  X(linear_int4g64_gfni)        \
  X(linear_int4g32_gfni)        \
  X(epilogue)                   \
  X(rope)                       \
  X(kv_append_f32)              \
  X(kv_append_f16)              \
  X(kv_append_int8)             \
  X(attention_f32_rows)         \
  X(attention_f32_splits)       \
  X(attention_f16_rows)         \
  X(attention_f16_splits)       \
  X(attention_int8_rows_bw)     \
  X(attention_int8_splits_bw)   \
  X(attention_int8_rows_vnni)   \
  X(attention_int8_splits_vnni) \
  X(shrink_f32)                 \
  X(shrink_bf16)                \
  X(shrink_int8_bw)             \
  X(shrink_int8_vnni)

INFENG_LIBRARY("avx512", INFENG_AVX512_VERSION, KERNELS)
