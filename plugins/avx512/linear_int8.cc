// SPDX-License-Identifier: Apache-2.0
#include <infeng/ops/linear_int.h>

#include "unit.h"

KERNEL_UNIT(linear_int8row, 0, infeng::LinearInt<Unit, infeng::Int8Row>)
