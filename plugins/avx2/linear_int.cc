// The int8 A of LoRA is multiplied by the code of int8 weights.
// SPDX-License-Identifier: Apache-2.0
#include <infeng/ops/linear_int.h>
#include <infeng/ops/shrink.h>

#include "unit.h"

#define LINEAR(arg, name, Format) KERNEL_UNIT(linear_##name, 0, infeng::LinearInt<Unit, infeng::Format>)
INFENG_INT_FORMATS(LINEAR, )
KERNEL_UNIT(shrink_int8, 0, infeng::Shrink<Unit, infeng::IntCore<infeng::Int8Row>>)
