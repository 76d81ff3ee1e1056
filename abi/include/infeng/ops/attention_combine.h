// What splits leave behind, and how they become one row of attention; attention.h has the formulas.
// SPDX-License-Identifier: Apache-2.0
#ifndef INFENG_OPS_ATTENTION_COMBINE_H
#define INFENG_OPS_ATTENTION_COMBINE_H

#include <infeng/ops/args.h>
#include <infeng/ops/exp.h>

namespace infeng {
namespace {

// A record is one split of one virtual row: m and l, later the weight of the combination in 16 lanes, then o[d] from
// float 16 on.
constexpr int64_t record_floats(int64_t head_dim) { return kLanes + (head_dim + kLanes - 1) / kLanes * kLanes; }

// out[0 .. dim) from `count` consecutive records; `sink` is one more score, without a value, or NULL.
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
  constexpr int kMost = 4;  // vectors at once: one sum waits for itself
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
