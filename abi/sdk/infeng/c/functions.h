/* The functions of docs/numerics.md in scalar C11, which give the bytes of the reference kernels. They serve kernels in
 * plain C; the headers of `infeng/ops` have the same over vectors, in C++. The compiler needs the flags of
 * `python -m infeng_abi --cflags`, and the library needs libm.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef INFENG_C_FUNCTIONS_H
#define INFENG_C_FUNCTIONS_H

#include <infeng/abi.h>
#include <math.h>
#include <string.h>

#define INFENG_C_INLINE static inline __attribute__((always_inline))

/* A function with this mark is compiled twice on x86-64: for any CPU, where fmaf is a call, and for CPUs that have the
 * instruction. Both compute the same bytes. Builds with the thread sanitizer have one version, because the dynamic
 * linker selects a version before the sanitizer has started. */
#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 12 && \
    !defined(__SANITIZE_THREAD__)
#define INFENG_C_CLONED __attribute__((target_clones("arch=x86-64-v3", "default")))
#else
#define INFENG_C_CLONED
#endif

INFENG_C_INLINE float infeng_f32_of_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

INFENG_C_INLINE float infeng_f32_of_bf16(uint16_t upper_half) { return infeng_f32_of_bits((uint32_t)upper_half << 16); }

/* e^x by Cephes' expf (S. Moshier): x = n ln 2 + r, and e^r is a polynomial. +0 below -87.33; x is at most 88. */
INFENG_C_INLINE float infeng_exp(float x) {
  static const float coefficients[] = {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f,
                                       5.0000001201e-1f};
  if (x < -87.33f) return 0.0f;
  if (x > 88.0f) x = 88.0f;
  const float n = rintf(x * 0x1.715476p+0f);
  const float r = fmaf(n, 0x1.05c610p-29f, fmaf(n, -0x1.62e430p-1f, x));
  float p = 1.9875691500e-4f;
  for (int i = 0; i < 5; i++) p = fmaf(p, r, coefficients[i]);
  return (fmaf(p, r * r, r) + 1.0f) * infeng_f32_of_bits((uint32_t)(127 + (int32_t)n) << 23);
}

INFENG_C_INLINE float infeng_sigmoid(float x) { return 1.0f / (1.0f + infeng_exp(-x)); }

INFENG_C_INLINE float infeng_silu(float x) { return x / (1.0f + infeng_exp(-x)); }

/* Cephes' tanhf (S. Moshier): a polynomial near 0, and from 0.625 on by the exponential function. */
INFENG_C_INLINE float infeng_tanh(float x) {
  const float size = fabsf(x), z = x * x;
  if (size >= 0.625f) {
    const float far = 1.0f - 2.0f / (infeng_exp(size + size) + 1.0f);
    return x < 0.0f ? -far : far;
  }
  float p = fmaf(-5.70498872745e-3f, z, 2.06390887954e-2f);
  p = fmaf(p, z, -5.37397155531e-2f);
  p = fmaf(p, z, 1.33314422036e-1f);
  p = fmaf(p, z, -3.33332819422e-1f);
  return fmaf(p * z, x, x);
}

/* x Phi(x); the tail of the normal distribution is Abramowitz and Stegun, 7.1.26. */
INFENG_C_INLINE float infeng_gelu(float x) {
  const float t = 1.0f / fmaf(0.231641888f, fabsf(x), 1.0f);
  float q = fmaf(0.5307027145f, t, -0.7265760135f);
  q = fmaf(q, t, 0.7107068705f);
  q = fmaf(q, t, -0.142248368f);
  q = fmaf(q, t, 0.127414796f);
  const float tail = (q * t) * infeng_exp((x * x) * -0.5f);
  return x * (x < 0.0f ? tail : 1.0f - tail);
}

INFENG_C_INLINE float infeng_gelu_tanh(float x) {
  const float inner = 0.7978845608f * fmaf(0.044715f * x, x * x, x);
  return (0.5f * x) * (1.0f + infeng_tanh(inner));
}

INFENG_C_INLINE float infeng_relu2(float x) { return x > 0.0f ? x * x : 0.0f; }

/* (up + 1) (gate sigmoid(slope gate)); gate is at most `limit`, up is within it. */
INFENG_C_INLINE float infeng_swiglu(float gate, float up, float slope, float limit) {
  if (!(gate < limit)) gate = limit;
  if (!(up < limit)) up = limit;
  if (!(up > -limit)) up = -limit;
  return (up + 1.0f) * (gate * infeng_sigmoid(slope * gate));
}

INFENG_C_INLINE float infeng_softcap(float x, float cap) { return cap * infeng_tanh(x / cap); }

/* The function INFENG_FUNCTION_* of one value; SWIGLU, WIDE and ROW are none. */
INFENG_C_INLINE float infeng_apply(uint32_t function, float x) {
  switch (function) {
    case INFENG_FUNCTION_SILU:
      return infeng_silu(x);
    case INFENG_FUNCTION_GELU:
      return infeng_gelu(x);
    case INFENG_FUNCTION_GELU_TANH:
      return infeng_gelu_tanh(x);
    case INFENG_FUNCTION_RELU2:
      return infeng_relu2(x);
    case INFENG_FUNCTION_SIGMOID:
      return infeng_sigmoid(x);
    default:
      return x;
  }
}

#endif /* INFENG_C_FUNCTIONS_H */
