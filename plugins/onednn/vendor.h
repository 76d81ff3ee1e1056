// oneDNN, opened at run time. Its threads are GNU OpenMP's, whose waiting is set before the library is there: threads
// that wait actively would take the processor from the host's workers between two linears.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <oneapi/dnnl/dnnl.h>

#define INFENG_ONEDNN_FUNCTIONS(X)        \
  X(dnnl_engine_create)                   \
  X(dnnl_stream_create)                   \
  X(dnnl_stream_wait)                     \
  X(dnnl_memory_desc_create_with_strides) \
  X(dnnl_memory_desc_create_with_tag)     \
  X(dnnl_memory_desc_clone)               \
  X(dnnl_memory_desc_destroy)             \
  X(dnnl_memory_desc_get_size)            \
  X(dnnl_memory_create)                   \
  X(dnnl_memory_destroy)                  \
  X(dnnl_matmul_primitive_desc_create)    \
  X(dnnl_reorder_primitive_desc_create)   \
  X(dnnl_primitive_desc_query_md)         \
  X(dnnl_primitive_desc_destroy)          \
  X(dnnl_primitive_create)                \
  X(dnnl_primitive_execute)               \
  X(dnnl_primitive_destroy)

namespace infeng::onednn {

struct Vendor {
#define INFENG_ONEDNN_FIELD(name) decltype(&::name) name;
  INFENG_ONEDNN_FUNCTIONS(INFENG_ONEDNN_FIELD)
#undef INFENG_ONEDNN_FIELD
  void (*set_threads)(int);                                      // omp_set_num_threads
  int (*thread)();                                               // omp_get_thread_num
  void (*parallel)(void (*)(void*), void*, unsigned, unsigned);  // GOMP_parallel
};

// The functions of the installed oneDNN, or NULL. It is opened at the first call.
const Vendor* vendor();

}  // namespace infeng::onednn
