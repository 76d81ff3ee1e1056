// The kernel table of the AVX2 library. One line here registers a kernel. SPDX-License-Identifier: Apache-2.0
#include <infeng/abi.h>

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
  X(attention_int8_splits_vnni)

#define DECLARE(name) extern "C" const infeng_kernel name;
#define ADDRESS(name) &name,
KERNELS(DECLARE)
static const infeng_kernel* const kernels[] = {KERNELS(ADDRESS)};

extern "C" infeng_status infeng_library(const infeng_host* host, infeng_library_desc* out) {
  out->abi_major = INFENG_ABI_MAJOR;
  out->abi_minor = INFENG_ABI_MINOR;
  if (host->abi_major != INFENG_ABI_MAJOR || host->abi_minor < INFENG_ABI_MINOR || out->struct_size < sizeof *out)
    return INFENG_UNSUPPORTED_ABI;
  out->name = "avx2";
  out->version = INFENG_AVX2_VERSION;
  out->kernels = kernels;
  out->kernel_count = sizeof kernels / sizeof *kernels;
  return INFENG_OK;
}
