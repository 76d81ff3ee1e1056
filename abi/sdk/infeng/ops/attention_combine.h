// The records that splits write, and their combination to one row of attention; attention.h has the formulas.
// SPDX-License-Identifier: Apache-2.0
#ifndef INFENG_OPS_ATTENTION_COMBINE_H
#define INFENG_OPS_ATTENTION_COMBINE_H

#include <infeng/ops/args.h>
#include <infeng/ops/exp.h>

namespace infeng {
namespace {

// A record is the result of one split for one virtual row. Floats 0 to 15 hold m and l, later the combination's weight
// in 16 lanes; o[d] begins at float 16.
constexpr int64_t record_floats(int64_t head_dim) { return kLanes + (head_dim + kLanes - 1) / kLanes * kLanes; }

// Computes out[0 .. dim) from `count` consecutive records. `sink`: an additional score whose V is 0, or NULL.
template <Vector V>
INFENG_INLINE void combine_splits(float* records, int64_t count, int dim, const float* sink, float* out) {
  const int64_t floats = record_floats(dim);
  float largest = records[0];
  for (int64_t j = 1; j < count; ++j) largest = records[j * floats] > largest ? records[j * floats] : largest;
  if (sink && *sink > largest) largest = *sink;
  auto sum = V::zero();
  for (int64_t j = 0; j < count; ++j) {
    float* r = records + j * floats;
    const auto weight = exp_of_negative<V>(V::set(r[0] - largest));
    sum = V::fma(V::set(r[1]), weight, sum);
    V::store(r, weight);
  }
  if (sink) sum = V::add(sum, exp_of_negative<V>(V::set(*sink - largest)));
  constexpr int kMost = 4;  // vectors at once, because each sum is a dependent chain
  for (int d = 0; d < dim; d += kMost * kLanes)
    dispatch<kMost>(int(ceil_div(dim - d, kLanes)), [&](auto vectors) INFENG_INLINE_LAMBDA {
      constexpr int C = vectors.value;
      typename V::F o[C];
      INFENG_EACH (c, C) o[c] = V::zero();
      for (int64_t j = 0; j < count; ++j) {
        const float* r = records + j * floats;
        const auto weight = V::load(r);
        INFENG_EACH (c, C) o[c] = V::fma(V::load(r + kLanes + d + c * kLanes), weight, o[c]);
      }
      INFENG_EACH (c, C) V::store(out + d + c * kLanes, V::div(o[c], sum));
    });
}

}  // namespace
}  // namespace infeng
#endif  // INFENG_OPS_ATTENTION_COMBINE_H
