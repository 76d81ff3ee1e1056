// The kernel table of the AMX library. One line here registers a kernel. SPDX-License-Identifier: Apache-2.0
#include <infeng/abi.h>

#define KERNELS(X)  \
  X(linear_int8row) \
  X(linear_int4g64) \
  X(linear_int4g32)

#define DECLARE(name) extern "C" const infeng_kernel name;
#define ADDRESS(name) &name,
KERNELS(DECLARE)
static const infeng_kernel* const kernels[] = {KERNELS(ADDRESS)};

extern "C" infeng_status infeng_library(const infeng_host* host, infeng_library_desc* out) {
  out->abi_major = INFENG_ABI_MAJOR;
  out->abi_minor = INFENG_ABI_MINOR;
  if (host->abi_major != INFENG_ABI_MAJOR || host->abi_minor < INFENG_ABI_MINOR || out->struct_size < sizeof *out)
    return INFENG_UNSUPPORTED_ABI;
  out->name = "amx";
  out->version = INFENG_AMX_VERSION;
  out->kernels = kernels;
  out->kernel_count = sizeof kernels / sizeof *kernels;
  return INFENG_OK;
}
