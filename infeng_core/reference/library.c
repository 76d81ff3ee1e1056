/* The reference library: plain C kernels for every op, the fallback on any CPU and the judge of all others.
 * SPDX-License-Identifier: Apache-2.0 */
#include <infeng/abi.h>

/* One line here registers a kernel. */
#define KERNELS(X)             \
  X(reference_embed_f32)       \
  X(reference_embed_bf16)      \
  X(reference_embed_int8_row)  \
  X(reference_embed_int4_g64)  \
  X(reference_embed_int4_g32)  \
  X(reference_rmsnorm)         \
  X(reference_linear_f32)      \
  X(reference_linear_bf16)     \
  X(reference_linear_int8_row) \
  X(reference_linear_int4_g64) \
  X(reference_linear_int4_g32) \
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

#define DECLARE(symbol) extern const infeng_kernel symbol;
#define ADDRESS(symbol) &symbol,
KERNELS(DECLARE)
static const infeng_kernel* const kernels[] = {KERNELS(ADDRESS)};

infeng_status infeng_library(const infeng_host* host, infeng_library_desc* out) {
  out->abi_major = INFENG_ABI_MAJOR;
  out->abi_minor = INFENG_ABI_MINOR;
  if (host->abi_major != INFENG_ABI_MAJOR || host->abi_minor < INFENG_ABI_MINOR || out->struct_size < sizeof *out) {
    return INFENG_UNSUPPORTED_ABI;
  }
  out->name = "reference";
  out->version = INFENG_REFERENCE_VERSION;
  out->kernels = kernels;
  out->kernel_count = (int32_t)(sizeof kernels / sizeof *kernels);
  return INFENG_OK;
}
