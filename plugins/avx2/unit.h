// The unit for which a source is compiled: its vectors, its kernels' suffix and the CPU features that they need.
// SPDX-License-Identifier: Apache-2.0
#ifndef INFENG_AVX2_UNIT_H
#define INFENG_AVX2_UNIT_H

#include <infeng/ops/unit.h>
#include <infeng/simd/avx2.h>

#ifdef __AVXVNNI__
#define INFENG_UNIT(name) name##_vnni
#define INFENG_UNIT_FEATURES "avx_vnni"
using Unit = infeng::avx2::AvxVnni;
#else
#define INFENG_UNIT(name) name##_maddubs
#define INFENG_UNIT_FEATURES ""
using Unit = infeng::avx2::Avx2;
#endif

#endif  // INFENG_AVX2_UNIT_H
