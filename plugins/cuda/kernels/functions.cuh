// exp, tanh, activations and number types, operation by operation as docs/numerics.md has them.
#pragma once

#include "simt.h"

namespace infeng_cuda {

constexpr int kGroup = 64;  // inputs with an activation scale and a sum of their own
constexpr int kPanel = 16;  // outputs of a panel, tokens of a cache block, virtual lanes of a sum

DEV float exp_of(float x) {
  if (x < -87.33f) return 0.0f;
  x = x < 88.0f ? x : 88.0f;
  const float n = rintf(x * 0x1.715476p+0f);
  float r = fmaf(n, -0x1.62e430p-1f, x);
  r = fmaf(n, 0x1.05c610p-29f, r);
  float p = 1.9875691500e-4f;
  p = fmaf(p, r, 1.3981999507e-3f);
  p = fmaf(p, r, 8.3334519073e-3f);
  p = fmaf(p, r, 4.1665795894e-2f);
  p = fmaf(p, r, 1.6666665459e-1f);
  p = fmaf(p, r, 5.0000001201e-1f);
  const float y = fmaf(p, r * r, r) + 1.0f;
  return y * float_of_bits(static_cast<unsigned>(static_cast<int>(n) + 127) << 23);
}

DEV float tanh_of(float x) {
  const float magnitude = fabsf(x);
  if (magnitude >= 0.625f) {
    const float y = 1.0f - 2.0f / (exp_of(magnitude + magnitude) + 1.0f);
    return x < 0.0f ? -y : y;
  }
  const float z = x * x;
  float p = -5.70498872745e-3f;
  p = fmaf(p, z, 2.06390887954e-2f);
  p = fmaf(p, z, -5.37397155531e-2f);
  p = fmaf(p, z, 1.33314422036e-1f);
  p = fmaf(p, z, -3.33332819422e-1f);
  return fmaf(p * z, x, x);
}

DEV float silu_of(float x) { return x / (1.0f + exp_of(-x)); }
DEV float sigmoid_of(float x) { return 1.0f / (1.0f + exp_of(-x)); }

DEV float gelu_of(float x) {
  const float t = 1.0f / fmaf(0.231641888f, fabsf(x), 1.0f);
  float q = 0.5307027145f;
  q = fmaf(q, t, -0.7265760135f);
  q = fmaf(q, t, 0.7107068705f);
  q = fmaf(q, t, -0.142248368f);
  q = fmaf(q, t, 0.127414796f);
  const float tail = (q * t) * exp_of((x * x) * -0.5f);
  return x * (x < 0.0f ? tail : 1.0f - tail);
}

DEV float gelu_tanh_of(float x) {
  const float inner = 0.7978845608f * fmaf(0.044715f * x, x * x, x);
  return (0.5f * x) * (1.0f + tanh_of(inner));
}

DEV float swiglu_of(float gate, float up, float slope, float limit) {
  gate = gate < limit ? gate : limit;
  up = up < limit ? up : limit;
  up = up > -limit ? up : -limit;
  return (up + 1.0f) * (gate * sigmoid_of(slope * gate));
}

// INFENG_FUNCTION_*; params.h has their numbers.
DEV float function_of(unsigned function, float x) {
  const float positive = x > 0.0f ? x : 0.0f;
  switch (function) {
    case 1:
      return silu_of(x);
    case 2:
      return gelu_of(x);
    case 3:
      return gelu_tanh_of(x);
    case 4:
      return positive * positive;
    case 5:
      return sigmoid_of(x);
    default:
      return x;
  }
}

DEV float float_of_bf16(uint16_t half) { return float_of_bits(static_cast<unsigned>(half) << 16); }

// Sum of 16 lanes in the order of the contract; `lanes` may be registers or shared memory of one thread.
DEV float tree_of(float* lanes) {
  for (int width = 8; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lanes[i] = lanes[i] + lanes[i + width];
  }
  return lanes[0];
}

}  // namespace infeng_cuda
