// SPDX-License-Identifier: Apache-2.0
#include <infeng/ops/linear_float.h>

#include "unit.h"

KERNEL(linear_f32, 0, infeng::LinearFloat<Unit, infeng::PanelF32>)
KERNEL(linear_bf16, 0, infeng::LinearFloat<Unit, infeng::PanelBf16>)
