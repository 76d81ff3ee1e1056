// SPDX-License-Identifier: Apache-2.0
#include <infeng/ops/attention_tiles.h>
#include <infeng/simd/amx.h>

using namespace infeng;

// As for linears, a kernel serves a range of rows, 2 to 8 or 9 to 64. Decode batches have small blocks, which use VNNI
// vectors.
constexpr int kFewestRows = 9;

using V = avx512::Vnni;

#define KERNEL(name, Cache)                       \
  extern "C" constinit const infeng_kernel name = \
      infeng::kernel<AttentionTiles<V, Cache<V, amx::Tiles>, kFewestRows>>(#name, "avx512_vnni");

KERNEL(attention_int8, AttentionInt8Tiles)
KERNEL(attention_int8h, AttentionInt8HTiles)
KERNEL(attention_k8v4h, AttentionK8V4HTiles)
KERNEL(attention_int8i, AttentionInt8ITiles)
KERNEL(attention_int8hi, AttentionInt8HITiles)
KERNEL(attention_k8v4hi, AttentionK8V4HITiles)
