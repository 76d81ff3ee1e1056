// SPDX-License-Identifier: Apache-2.0
#include <infeng/ops/shrink.h>

#include "unit.h"

KERNEL_UNIT(shrink_int8, 0, infeng::Shrink<Unit, infeng::IntCore<infeng::Int8Row>>)
