// The kernel table of the AMX library; each line registers a kernel. SPDX-License-Identifier: Apache-2.0
#include <infeng/ops/library.h>

#define KERNELS(X)    \
  X(linear_int8row)   \
  X(linear_int8g32)   \
  X(linear_int4g64)   \
  X(linear_int4g32)   \
  X(linear_int4p32)   \
  X(linear_int5p32)   \
  X(linear_int6p32)   \
  X(attention_int8)   \
  X(attention_int8h)  \
  X(attention_k8v4h)  \
  X(attention_int8i)  \
  X(attention_int8hi) \
  X(attention_k8v4hi)

INFENG_LIBRARY("amx", INFENG_AMX_VERSION, KERNELS)
