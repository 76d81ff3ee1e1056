// The unit for which a source is compiled: its vectors, its kernels' suffix and the CPU features that they need.
// SPDX-License-Identifier: Apache-2.0
#ifndef INFENG_NEON_UNIT_H
#define INFENG_NEON_UNIT_H

#include <infeng/ops/unit.h>
#include <infeng/simd/neon.h>

#ifdef __ARM_FEATURE_MATMUL_INT8
#define INFENG_UNIT(name) name##_i8mm
#define INFENG_UNIT_FEATURES "i8mm"
using Unit = infeng::neon::I8mm;
#else
#define INFENG_UNIT(name) name##_dotprod
#define INFENG_UNIT_FEATURES ""
using Unit = infeng::neon::Dotprod;
#endif

#endif  // INFENG_NEON_UNIT_H
