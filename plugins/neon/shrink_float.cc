// SPDX-License-Identifier: Apache-2.0
#include <infeng/ops/shrink.h>

#include "unit.h"

KERNEL(shrink_f32, 0, infeng::Shrink<Unit, infeng::ChainCore<infeng::PanelF32>>)
KERNEL(shrink_bf16, 0, infeng::Shrink<Unit, infeng::ChainCore<infeng::PanelBf16>>)
