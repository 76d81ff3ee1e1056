// SPDX-License-Identifier: Apache-2.0
#include <infeng/ops/linear_affine.h>
#include <infeng/simd/affine_avx2.h>

#include "unit.h"

#ifdef __AVXVNNI__
using Dots = infeng::AffineDots<Unit, infeng::avx2::AffineBytes>;
#else
using Dots = infeng::avx2::AffineDots;
#endif

#define LINEAR(arg, name, Format) KERNEL_UNIT(linear_##name, 0, infeng::LinearAffine<Dots, infeng::Format>)
INFENG_AFFINE_FORMATS(LINEAR, )
