// The entry of a library whose kernels are rows of a list: INFENG_LIBRARY("name", "version", KERNELS), where
// KERNELS(X) is X(first_kernel) X(second_kernel) ... SPDX-License-Identifier: Apache-2.0
#ifndef INFENG_OPS_LIBRARY_H
#define INFENG_OPS_LIBRARY_H

#include <infeng/abi.h>

#define INFENG_DECLARE_KERNEL_(name) extern "C" const infeng_kernel name;
#define INFENG_KERNEL_ADDRESS_(name) &name,

#define INFENG_LIBRARY(library_name, library_version, KERNELS)                                                       \
  KERNELS(INFENG_DECLARE_KERNEL_)                                                                                    \
  static const infeng_kernel* const infeng_kernels_[] = {KERNELS(INFENG_KERNEL_ADDRESS_)};                           \
  extern "C" infeng_status infeng_library(const infeng_host* host, infeng_library_desc* out) {                       \
    out->abi_major = INFENG_ABI_MAJOR;                                                                               \
    out->abi_minor = INFENG_ABI_MINOR;                                                                               \
    if (host->abi_major != INFENG_ABI_MAJOR || host->abi_minor < INFENG_ABI_MINOR || out->struct_size < sizeof *out) \
      return INFENG_UNSUPPORTED_ABI;                                                                                 \
    out->name = library_name;                                                                                        \
    out->version = library_version;                                                                                  \
    out->kernels = infeng_kernels_;                                                                                  \
    out->kernel_count = sizeof infeng_kernels_ / sizeof *infeng_kernels_;                                            \
    return INFENG_OK;                                                                                                \
  }

#endif  // INFENG_OPS_LIBRARY_H
