// The rotation of the cache formats with an h in their names: y = H x with a Hadamard matrix H of plus and minus ones,
// in blocks of the largest power of two that divides the head size. H H = block, so the product of H q with H (k /
// block) is that of q with k, and applying H to H (v / block) restores v; docs/numerics.md has the order of additions.
// SPDX-License-Identifier: Apache-2.0
#ifndef INFENG_OPS_HADAMARD_H
#define INFENG_OPS_HADAMARD_H

#include <infeng/ops/args.h>

namespace infeng {
namespace {

constexpr int kLeastHadamardBlock = 8;

constexpr int hadamard_block(int dim) { return dim & -dim; }

// y[0 .. dim) = H (x * factor), padded with zeros to a multiple of 16; dim is a multiple of 8.
template <Vector V>
INFENG_INLINE void hadamard(const float* x, int dim, float factor, float* y) {
  const int block = hadamard_block(dim);
  for (int d = 0; d < dim; d += kLanes) {
    auto f = V::mul(V::load(x + d, dim - d), V::set(factor));
    f = V::template butterfly<4>(V::template butterfly<2>(V::template butterfly<1>(f)));
    if (block > 8) f = V::template butterfly<8>(f);
    V::store(y + d, f);
  }
  for (int h = kLanes; h < block; h *= 2)
    for (int begin = 0; begin < dim; begin += 2 * h)
      for (int i = begin; i < begin + h; i += kLanes) {
        const auto a = V::load(y + i), b = V::load(y + i + h);
        V::store(y + i, V::add(a, b));
        V::store(y + i + h, V::sub(a, b));
      }
}

}  // namespace
}  // namespace infeng
#endif  // INFENG_OPS_HADAMARD_H
