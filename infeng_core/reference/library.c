/* The reference library: plain C kernels for every op, the fallback on any CPU and the judge of all others.
 * SPDX-License-Identifier: Apache-2.0 */
#include <infeng/ops/library.h>

/* One line here registers a kernel. */
#define KERNELS(X)             \
  X(reference_embed_f32)       \
  X(reference_embed_bf16)      \
  X(reference_embed_int8_row)  \
  X(reference_embed_int4_g64)  \
  X(reference_embed_int4_g32)  \
  X(reference_embed_foreign)   \
  X(reference_rmsnorm)         \
  X(reference_linear_f32)      \
  X(reference_linear_bf16)     \
  X(reference_linear_int8_row) \
  X(reference_linear_int4_g64) \
  X(reference_linear_int4_g32) \
  X(reference_linear_foreign)  \
  X(reference_epilogue)        \
  X(reference_rope)            \
  X(reference_kv_append_f32)   \
  X(reference_kv_append_f16)   \
  X(reference_kv_append_int8)  \
  X(reference_attention_f32)   \
  X(reference_attention_f16)   \
  X(reference_attention_int8)  \
  X(reference_shrink_f32)      \
  X(reference_shrink_bf16)     \
  X(reference_shrink_int8)

INFENG_LIBRARY("reference", INFENG_REFERENCE_VERSION, KERNELS)
