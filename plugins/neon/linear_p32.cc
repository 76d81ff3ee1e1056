// SPDX-License-Identifier: Apache-2.0
#include <infeng/ops/linear_p32.h>

#include "unit.h"

#define LINEAR(arg, name, Format) KERNEL_UNIT(linear_##name, 0, infeng::LinearP32<Unit, infeng::Format>)
INFENG_P32_FORMATS(LINEAR, )
