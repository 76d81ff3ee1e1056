// The functions of docs/numerics.md: Cephes' expf (S. Moshier) with 2^n from exponent bits, and others on top of it.
//   exp(x) = (fma(p(r), r * r, r) + 1) * 2^n,  n = rne(x / ln 2),  r = x - n ln 2;  +0 below -87.33, x at most 88
//   silu(x) = x / (1 + exp(-x));  tanh(x): Cephes' tanhf;  gelu_tanh(x) = x / 2 * (1 + tanh(c * (x + 0.044715 x^3)))
//   swiglu(gate, up) = (up + 1) * (gate * sigmoid(a * gate)), gate at most b, up within b
// SPDX-License-Identifier: Apache-2.0
#ifndef INFENG_OPS_EXP_H
#define INFENG_OPS_EXP_H

#include <infeng/simd/vec.h>

namespace infeng {
namespace {

// exp(x - n ln 2); `nf` is n, the integer nearest to x / ln 2.
template <class V>
INFENG_INLINE typename V::F exp_of_rest(typename V::F x, typename V::F nf) {
  auto r = V::fma(nf, V::set(-0x1.62e430p-1f), x);
  r = V::fma(nf, V::set(0x1.05c610p-29f), r);
  auto p = V::set(1.9875691500e-4f);
  p = V::fma(p, r, V::set(1.3981999507e-3f));
  p = V::fma(p, r, V::set(8.3334519073e-3f));
  p = V::fma(p, r, V::set(4.1665795894e-2f));
  p = V::fma(p, r, V::set(1.6666665459e-1f));
  p = V::fma(p, r, V::set(5.0000001201e-1f));
  return V::add(V::fma(p, V::mul(r, r), r), V::set(1.0f));
}

constexpr float kPerLn2 = 0x1.715476p+0f, kLeastExponent = -87.33f;

template <Vector V>
INFENG_INLINE typename V::F exp(typename V::F x) {
  x = V::min(V::max(x, V::set(-88.0f)), V::set(88.0f));
  const auto n = V::rne(V::mul(x, V::set(kPerLn2)));
  const auto y = exp_of_rest<V>(x, V::to_float(n));
  return V::select_less(x, V::set(kLeastExponent), V::zero(), V::mul(y, V::exp2i(n)));
}

// exp(x) for x <= 0 without clamping: for x >= -87.33 the result is a normal number, so multiplication by 2^n is exact;
// for smaller x, minus infinity included, the result is replaced by +0. Adding 1.5 * 2^23 rounds to an integer, which
// is in the last bits of the sum.
template <class V>
INFENG_INLINE typename V::F exp_of_negative(typename V::F x) {
  const auto shift = V::set(0x1.8p+23f), bits = V::add(V::mul(x, V::set(kPerLn2)), shift), n = V::sub(bits, shift);
  return V::scale_above(x, V::set(kLeastExponent), exp_of_rest<V>(x, n), bits, n);
}

// The same for N vectors, interleaved step by step: the steps of one vector form a dependent chain, and a core looks
// ahead only so far for other work.
template <Vector V, int N>
struct Abreast {
  struct F {
    typename V::F of[N];
  };
  template <class Fn>
  static INFENG_INLINE F each(const Fn& fn) {
    F f;
    INFENG_EACH (n, N) f.of[n] = fn(n);
    return f;
  }
  static INFENG_INLINE F set(float s) {
    return each([&](int) INFENG_INLINE_LAMBDA { return V::set(s); });
  }
  static INFENG_INLINE F add(F a, F b) {
    return each([&](int n) INFENG_INLINE_LAMBDA { return V::add(a.of[n], b.of[n]); });
  }
  static INFENG_INLINE F sub(F a, F b) {
    return each([&](int n) INFENG_INLINE_LAMBDA { return V::sub(a.of[n], b.of[n]); });
  }
  static INFENG_INLINE F mul(F a, F b) {
    return each([&](int n) INFENG_INLINE_LAMBDA { return V::mul(a.of[n], b.of[n]); });
  }
  static INFENG_INLINE F fma(F a, F b, F c) {
    return each([&](int n) INFENG_INLINE_LAMBDA { return V::fma(a.of[n], b.of[n], c.of[n]); });
  }
  static INFENG_INLINE F scale_above(F x, F least, F y, F bits, F k) {
    return each(
        [&](int n) INFENG_INLINE_LAMBDA { return V::scale_above(x.of[n], least.of[n], y.of[n], bits.of[n], k.of[n]); });
  }
};

template <Vector V>
INFENG_INLINE typename V::F silu(typename V::F x) {
  return V::div(x, V::add(V::set(1.0f), exp<V>(V::sub(V::zero(), x))));
}

// tanh(x): 1 - 2 / (exp(2 |x|) + 1) with the sign of x if |x| >= 0.625, else a polynomial.
template <Vector V>
INFENG_INLINE typename V::F tanh(typename V::F x) {
  const auto size = V::abs(x), one = V::set(1.0f);
  const auto far = V::sub(one, V::div(V::set(2.0f), V::add(exp<V>(V::add(size, size)), one)));
  const auto z = V::mul(x, x);
  auto p = V::set(-5.70498872745e-3f);
  p = V::fma(p, z, V::set(2.06390887954e-2f));
  p = V::fma(p, z, V::set(-5.37397155531e-2f));
  p = V::fma(p, z, V::set(1.33314422036e-1f));
  p = V::fma(p, z, V::set(-3.33332819422e-1f));
  const auto near = V::fma(V::mul(p, z), x, x);
  const auto signed_far = V::select_less(x, V::zero(), V::sub(V::zero(), far), far);
  return V::select_less(size, V::set(0.625f), near, signed_far);
}

template <Vector V>
INFENG_INLINE typename V::F gelu_tanh(typename V::F x) {
  const auto cube = V::fma(V::mul(V::set(0.044715f), x), V::mul(x, x), x);
  const auto inner = V::mul(V::set(0.7978845608f), cube);
  return V::mul(V::mul(V::set(0.5f), x), V::add(V::set(1.0f), tanh<V>(inner)));
}

template <Vector V>
INFENG_INLINE typename V::F swiglu(typename V::F gate, typename V::F up, float a, float b) {
  const auto one = V::set(1.0f), limit = V::set(b);
  gate = V::min(gate, limit);
  up = V::max(V::min(up, limit), V::set(-b));
  const auto decay = exp<V>(V::sub(V::zero(), V::mul(V::set(a), gate)));
  return V::mul(V::add(up, one), V::mul(gate, V::div(one, V::add(one, decay))));
}

// cap * tanh(x / cap)
template <Vector V>
INFENG_INLINE typename V::F softcap(typename V::F x, float cap) {
  return V::mul(V::set(cap), tanh<V>(V::div(x, V::set(cap))));
}

}  // namespace
}  // namespace infeng
#endif  // INFENG_OPS_EXP_H
