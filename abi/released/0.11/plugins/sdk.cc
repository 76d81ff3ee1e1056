// A library of 0.11 in C++ over the SDK: exact kernels, of which the norm fuses QUANTIZE.
// SPDX-License-Identifier: Apache-2.0
#include <infeng/ops/library.h>
#include <infeng/ops/rmsnorm.h>
#include <infeng/ops/rope.h>
#include <infeng/simd/scalar.h>

using infeng::scalar::Scalar;

extern "C" constinit const infeng_kernel retained_rope = infeng::kernel<infeng::Rope<Scalar>>("rope_sdk", "");
extern "C" constinit const infeng_kernel retained_rmsnorm = infeng::kernel<infeng::Rmsnorm<Scalar>>("rmsnorm_sdk", "");

#define KERNELS(X) X(retained_rope) X(retained_rmsnorm)
INFENG_LIBRARY("retained_sdk", "1", KERNELS)
