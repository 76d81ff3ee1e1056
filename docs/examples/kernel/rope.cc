// rope in C++20 from the SDK: the op's loop is infeng/ops/rope.h, the vectors are the portable ones. With
// <infeng/simd/avx512.h> and infeng::avx512::Bw the same line is an AVX-512 kernel. SPDX-License-Identifier: Apache-2.0
#include <infeng/ops/rope.h>
#include <infeng/simd/scalar.h>

extern "C" constinit const infeng_kernel example_rope =
    infeng::kernel<infeng::Rope<infeng::scalar::Scalar>>("rope_cc", "");
