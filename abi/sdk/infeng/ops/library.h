/* The entry function of a library, in C or C++: INFENG_LIBRARY("name", "version", KERNELS), where KERNELS(X) is
 * X(first_kernel) X(second_kernel) ... It accepts hosts of older and newer minors from INFENG_ABI_SINCE on.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef INFENG_OPS_LIBRARY_H
#define INFENG_OPS_LIBRARY_H

#include <infeng/abi.h>

#ifdef __cplusplus
#define INFENG_DECLARE_KERNEL_(name) extern "C" const infeng_kernel name;
#define INFENG_ENTRY_ extern "C"
#else
#define INFENG_DECLARE_KERNEL_(name) extern const infeng_kernel name;
#define INFENG_ENTRY_
#endif
#define INFENG_KERNEL_ADDRESS_(name) &name,

/* Sets the older of both versions, and the revision of the numerics. Returns INFENG_OK, or INFENG_UNSUPPORTED_ABI if
 * they are incompatible. `out` has the fields of INFENG_ABI_SINCE; check `out->struct_size` before writing a later
 * field. */
static inline infeng_status infeng_negotiate(const infeng_host* host, infeng_library_desc* out) {
  out->abi_major = INFENG_ABI_MAJOR;
  out->abi_minor = INFENG_ABI_MINOR;
  if (host->abi_major != INFENG_ABI_MAJOR || host->abi_minor < INFENG_ABI_SINCE) return INFENG_UNSUPPORTED_ABI;
  if (host->abi_minor < INFENG_ABI_MINOR) out->abi_minor = host->abi_minor;
  if (out->struct_size >= offsetof(infeng_library_desc, op_count)) out->numerics = INFENG_NUMERICS;
  return INFENG_OK;
}

/* Lists ops that the library describes, after infeng_negotiate. A host of a minor without them leaves their kernels
 * out. */
static inline void infeng_list_ops(infeng_library_desc* out, infeng_op* const* ops, int32_t count) {
  if (out->struct_size < offsetof(infeng_library_desc, ops) + sizeof out->ops) return;
  out->ops = ops;
  out->op_count = count;
}

#define INFENG_LIBRARY(library_name, library_version, KERNELS)                                    \
  KERNELS(INFENG_DECLARE_KERNEL_)                                                                 \
  static const infeng_kernel* const infeng_kernels_[] = {KERNELS(INFENG_KERNEL_ADDRESS_)};        \
  INFENG_ENTRY_ infeng_status infeng_library(const infeng_host* host, infeng_library_desc* out) { \
    const infeng_status status = infeng_negotiate(host, out);                                     \
    if (status != INFENG_OK) return status;                                                       \
    out->name = library_name;                                                                     \
    out->version = library_version;                                                               \
    out->kernels = infeng_kernels_;                                                               \
    out->kernel_count = (int32_t)(sizeof infeng_kernels_ / sizeof *infeng_kernels_);              \
    return INFENG_OK;                                                                             \
  }

#endif /* INFENG_OPS_LIBRARY_H */
