/* The reference library: plain C kernels for every op. They are the fallback on any CPU, and tests compare all other
 * kernels with them.
 * SPDX-License-Identifier: Apache-2.0 */
#include <infeng/ops/library.h>

#include "kv_formats.h"
#include "weights.h"

/* Each line registers a kernel, or one for each format. */
#define EMBED(X, name, ...) X(reference_embed_##name)
#define LINEAR(X, name, ...) X(reference_linear_##name)
#define KV_APPEND(X, name, ...) X(reference_kv_append_##name)
#define ATTENTION(X, name, ...) X(reference_attention_##name)
#define KERNELS(X)            \
  WEIGHT_FORMATS(EMBED, X)    \
  X(reference_embed_foreign)  \
  X(reference_rmsnorm)        \
  X(reference_layernorm)      \
  WEIGHT_FORMATS(LINEAR, X)   \
  X(reference_linear_foreign) \
  X(reference_epilogue)       \
  X(reference_rope)           \
  CACHE_FORMATS(KV_APPEND, X) \
  CACHE_FORMATS(ATTENTION, X) \
  X(reference_shrink_f32)     \
  X(reference_shrink_bf16)    \
  X(reference_shrink_int8)    \
  X(reference_route)          \
  X(reference_combine)

INFENG_LIBRARY("reference", INFENG_REFERENCE_VERSION, KERNELS)
