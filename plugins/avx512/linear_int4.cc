// SPDX-License-Identifier: Apache-2.0
#include <infeng/ops/linear_int.h>

#include "unit.h"

KERNEL_UNIT(linear_int4g64, 0, infeng::LinearInt<Unit, infeng::Int4G64>)
KERNEL_UNIT(linear_int4g32, 0, infeng::LinearInt<Unit, infeng::Int4G32>)
