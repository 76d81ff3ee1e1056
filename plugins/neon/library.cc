// The kernel table of the NEON library; ops/unit.h names the kernels that vector libraries share.
// SPDX-License-Identifier: Apache-2.0
#include <infeng/ops/library.h>
#include <infeng/ops/unit.h>

#define OF_UNIT(X, unit) INFENG_UNIT_KERNELS(X, unit) INFENG_P32_KERNELS(X, unit) INFENG_AFFINE_KERNELS(X, unit)
#define KERNELS(X) INFENG_PLAIN_KERNELS(X) OF_UNIT(X, dotprod) OF_UNIT(X, i8mm)

INFENG_LIBRARY("neon", INFENG_NEON_VERSION, KERNELS)
