// Attention over tiles in plain loops, as a kernel library that counts its products. SPDX-License-Identifier:
// Apache-2.0
#include <infeng/ops/attention_tiles.h>
#include <infeng/ops/library.h>
#include <infeng/simd/tiles_scalar.h>

#include <atomic>

namespace {

std::atomic<int64_t> products;

struct Counted : infeng::scalar::Tiles {
  template <int C, int A, int B>
  static void dot_unsigned() {
    ++products;
    infeng::scalar::Tiles::dot_unsigned<C, A, B>();
  }
};

}  // namespace

// The products of tiles since the last call.
extern "C" __attribute__((visibility("default"))) int64_t take_products() { return products.exchange(0); }

using V = infeng::scalar::Scalar;
extern "C" constinit const infeng_kernel attention_int8 =
    infeng::kernel<infeng::AttentionTiles<V, infeng::AttentionInt8Tiles<V, Counted>, 9>>("attention_int8", "");

#define KERNELS(X) X(attention_int8)
INFENG_LIBRARY("tiles", "0", KERNELS)
