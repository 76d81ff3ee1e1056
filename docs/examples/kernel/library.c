/* The one exported symbol: which kernels this library has. SPDX-License-Identifier: Apache-2.0 */
#include <infeng/ops/library.h>

#define KERNELS(X)   \
  X(example_rmsnorm) \
  X(example_rope)

INFENG_LIBRARY("example", "0.1.0", KERNELS) /* the name as in plugin.yaml */
