// The kernel table of the AVX2 library. One line here registers a kernel. SPDX-License-Identifier: Apache-2.0
#include <infeng/ops/library.h>

#define KERNELS(X)                 \
  X(embed_f32)                     \
  X(embed_bf16)                    \
  X(embed_int8row)                 \
  X(embed_int4g64)                 \
  X(embed_int4g32)                 \
  X(rmsnorm)                       \
  X(linear_f32)                    \
  X(linear_bf16)                   \
  X(linear_int8row_maddubs)        \
  X(linear_int4g64_maddubs)        \
  X(linear_int4g32_maddubs)        \
  X(linear_int8row_vnni)           \
  X(linear_int4g64_vnni)           \
  X(linear_int4g32_vnni)           \
  X(epilogue)                      \
  X(rope)                          \
  X(kv_append_f32)                 \
  X(kv_append_f16)                 \
  X(kv_append_int8)                \
  X(attention_f32_rows)            \
  X(attention_f32_splits)          \
  X(attention_f16_rows)            \
  X(attention_f16_splits)          \
  X(attention_int8_rows_maddubs)   \
  X(attention_int8_splits_maddubs) \
  X(attention_int8_rows_vnni)      \
  X(attention_int8_splits_vnni)    \
  X(shrink_f32)                    \
  X(shrink_bf16)                   \
  X(shrink_int8_maddubs)           \
  X(shrink_int8_vnni)

INFENG_LIBRARY("avx2", INFENG_AVX2_VERSION, KERNELS)
