/* The rotation of the cache formats with an h in their names: a product with a Hadamard matrix H of plus and minus
 * ones, in blocks of the largest power of two that divides the head size. SPDX-License-Identifier: Apache-2.0 */
#ifndef INFENG_REFERENCE_HADAMARD_H
#define INFENG_REFERENCE_HADAMARD_H

#include "common.h"

#define LEAST_HADAMARD_BLOCK 8

INLINE int64_t hadamard_block(int64_t dim) { return dim & -dim; }

INLINE void hadamard(float* x, int64_t dim) { hadamard_blocks(x, dim, hadamard_block(dim)); }

/* y = H (x / block), the form in which the cache stores k and v. H H = block, so products with H q equal those with q,
 * and H restores values. Dividing first keeps sums no larger than the largest x. */
INLINE void rotate(const float* x, int64_t dim, float* y) {
  const float inverse = 1.0f / (float)hadamard_block(dim);
  for (int64_t d = 0; d < dim; d++) y[d] = x[d] * inverse;
  hadamard(y, dim);
}

#endif
