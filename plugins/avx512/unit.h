// The unit for which a source is compiled: its vectors, its kernels' suffix and the CPU features that they need.
// SPDX-License-Identifier: Apache-2.0
#ifndef INFENG_AVX512_UNIT_H
#define INFENG_AVX512_UNIT_H

#include <infeng/ops/unit.h>
#include <infeng/simd/avx512.h>

#if defined(__GFNI__)
#define INFENG_UNIT(name) name##_gfni
#define INFENG_UNIT_FEATURES "avx512_vnni,gfni"
using Unit = infeng::avx512::Gfni;
#elif defined(__AVX512VNNI__)
#define INFENG_UNIT(name) name##_vnni
#define INFENG_UNIT_FEATURES "avx512_vnni"
using Unit = infeng::avx512::Vnni;
#else
#define INFENG_UNIT(name) name##_bw
#define INFENG_UNIT_FEATURES ""
using Unit = infeng::avx512::Bw;
#endif

#endif  // INFENG_AVX512_UNIT_H
