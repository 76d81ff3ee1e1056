/* The one exported symbol: which kernels this library has. SPDX-License-Identifier: Apache-2.0 */
#include <infeng/ops/library.h>

#define KERNELS(X)       \
  X(example_linear_f32)  \
  X(example_linear_int8) \
  X(example_epilogue)

INFENG_LIBRARY("linear", "0.1.0", KERNELS) /* the name as in plugin.yaml */
