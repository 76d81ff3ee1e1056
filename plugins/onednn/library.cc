// The kernel table of the oneDNN library. SPDX-License-Identifier: Apache-2.0
#include <infeng/ops/library.h>

#define KERNELS(X) \
  X(linear_f32)    \
  X(linear_bf16)

INFENG_LIBRARY("onednn", INFENG_ONEDNN_VERSION, KERNELS)
