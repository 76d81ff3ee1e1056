// SPDX-License-Identifier: Apache-2.0
#include <infeng/ops/linear_affine.h>

#include "unit.h"

using Dots = infeng::AffineDots<Unit, infeng::neon::AffineBytes>;

#define LINEAR(arg, name, Format) KERNEL_UNIT(linear_##name, 0, infeng::LinearAffine<Dots, infeng::Format>)
INFENG_AFFINE_FORMATS(LINEAR, )
