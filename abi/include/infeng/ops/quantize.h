// quantize(x[0 .. count)): one scale for all, q in [-127, 127], as docs/numerics.md defines it.
//   amax = max |x|;  amax < 2^-100: q = 0, scale = 0;  else scale = amax / 127, q = rne(x * (127 / amax)), clamped
// SPDX-License-Identifier: Apache-2.0
#ifndef INFENG_OPS_QUANTIZE_H
#define INFENG_OPS_QUANTIZE_H

#include <infeng/ops/args.h>

namespace infeng {
namespace {

struct Quantized {
  float scale;
  int32_t sum;  // of q
};

// Writes q[0 .. padded), a multiple of 16; what lies behind count is 0.
template <Vector V>
INFENG_INLINE Quantized quantize(const float* x, int count, int8_t* q, int padded) {
  auto largest = V::zero();
  for (int c = 0; c < count; c += kLanes) largest = V::max(largest, V::abs(V::load(x + c, count - c)));
  const float amax = V::max_lanes(largest);
  if (amax < 0x1p-100f) {
    for (int c = 0; c < padded; c += kLanes) V::store_i8(q + c, V::iset(0));
    return {0.0f, 0};
  }
  const auto inverse = V::set(127.0f / amax);
  auto sum = V::iset(0);
  for (int c = 0; c < padded; c += kLanes) {
    auto v = V::rne(V::mul(V::load(x + c, count - c), inverse));
    v = V::imax(V::imin(v, V::iset(127)), V::iset(-127));
    V::store_i8(q + c, v);
    sum = V::iadd(sum, v);
  }
  return {amax / 127.0f, V::isum(sum)};
}

// Columns [column, column + width) of one row as groups of an activation; `column` is a multiple of 64.
template <Vector V>
INFENG_INLINE void quantize_columns(const infeng_activation& act, int64_t row, int64_t column, const float* x,
                                    int64_t width) {
  int8_t* q = row_of<int8_t>(act.q, row) + column;
  float* scale = row_of<float>(act.scale, row) + column / kGroup;
  int32_t* sum = row_of<int32_t>(act.sum, row) + column / kGroup;
  for (int64_t c = 0; c < width; c += kGroup) {
    const Quantized r = quantize<V>(x + c, int(min_of(width - c, kGroup)), q + c, kGroup);
    *scale++ = r.scale;
    *sum++ = r.sum;
  }
}

}  // namespace
}  // namespace infeng
#endif  // INFENG_OPS_QUANTIZE_H
