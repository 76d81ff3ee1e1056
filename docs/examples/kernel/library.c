/* The one exported symbol: which kernels this library has. SPDX-License-Identifier: Apache-2.0 */
#include <infeng/abi.h>

extern const infeng_kernel example_rmsnorm, example_rope;
static const infeng_kernel* const kernels[] = {&example_rmsnorm, &example_rope};

infeng_status infeng_library(const infeng_host* host, infeng_library_desc* out) {
  out->abi_major = INFENG_ABI_MAJOR;
  out->abi_minor = INFENG_ABI_MINOR;
  if (host->abi_major != INFENG_ABI_MAJOR || host->abi_minor < INFENG_ABI_MINOR || out->struct_size < sizeof *out) {
    return INFENG_UNSUPPORTED_ABI;
  }
  out->name = "example"; /* as in plugin.yaml */
  out->version = "0.1.0";
  out->kernels = kernels;
  out->kernel_count = sizeof kernels / sizeof *kernels;
  return INFENG_OK;
}
