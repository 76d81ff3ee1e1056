// SPDX-License-Identifier: Apache-2.0
#include <infeng/ops/linear_int.h>

#include "unit.h"

#define LINEAR(arg, name, Format) KERNEL_UNIT(linear_##name, 0, infeng::LinearInt<Unit, infeng::Format>)
INFENG_INT_FORMATS(LINEAR, )
