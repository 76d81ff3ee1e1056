// A kernel library of every op of the SDK over scalar vectors: it shows that ops do not depend on an instruction set,
// and sanitizers can check plain loops. SPDX-License-Identifier: Apache-2.0
#include <infeng/ops/attention_tiles.h>
#include <infeng/ops/embed.h>
#include <infeng/ops/experts.h>
#include <infeng/ops/kv_append.h>
#include <infeng/ops/layernorm.h>
#include <infeng/ops/linear_affine.h>
#include <infeng/ops/linear_float.h>
#include <infeng/ops/linear_int.h>
#include <infeng/ops/linear_p32.h>
#include <infeng/ops/linear_tiles.h>
#include <infeng/ops/rmsnorm.h>
#include <infeng/ops/rope.h>
#include <infeng/ops/shrink.h>
#include <infeng/simd/tiles_scalar.h>

namespace infeng {
namespace {

using V = scalar::Scalar;

// p32 with many rows over biased lines, like VNNI.
struct Biased : V {
  static constexpr int kBias = 128;
  static void dot_scaled() = delete;  // hides the function that would also satisfy ScaledLines

  template <int Bits>
  static void unpack_lines(const uint8_t* packed, const SubScales& s, uint8_t* lines) {
    for (int l = 0; l < 16; ++l)
      for (int b = 0; b < kLine; ++b) {
        const int u = unit<Bits>(packed + l / 8 * Bits * kLine + b, l % 8), n = b / 4;
        lines[l * kLine + b] = uint8_t(s.s[l / 8][2 * n] * u - s.zs[2 * n + l / 8] + kBias);
      }
  }
  template <int M, int P, class Each>
  static void add_biased(I (&acc)[M][P], const uint8_t* const (&w)[P], const int8_t* const (&x)[M], const Each&) {
    for (int m = 0; m < M; ++m)
      for (int p = 0; p < P; ++p)
        for (int i = 0; i < kGroup * kLanes; ++i) acc[m][p].v[i % kLine / 4] += x[m][i / kLine * 4 + i % 4] * w[p][i];
  }
};

constexpr infeng_kernel table[] = {
    kernel<Embed<V, LaneF32>>("embed_f32", ""),
    kernel<Embed<V, LaneBf16>>("embed_bf16", ""),
    kernel<Embed<V, LaneInt<Int8Row>>>("embed_int8row", ""),
    kernel<Embed<V, LaneInt<Int8G32>>>("embed_int8g32", ""),
    kernel<Embed<V, LaneInt<Int4G64>>>("embed_int4g64", ""),
    kernel<Embed<V, LaneInt<Int4G32>>>("embed_int4g32", ""),
    kernel<Embed<V, LaneP32<Int4P32>>>("embed_int4p32", ""),
    kernel<Embed<V, LaneP32<Int5P32>>>("embed_int5p32", ""),
    kernel<Embed<V, LaneP32<Int6P32>>>("embed_int6p32", ""),
    kernel<Embed<V, LaneAffine<Int4A256>>>("embed_int4a256", ""),
    kernel<Embed<V, LaneAffine<Int4A128>>>("embed_int4a128", ""),
    kernel<Rmsnorm<V>>("rmsnorm", ""),
    kernel<Layernorm<V>>("layernorm", ""),
    kernel<LinearFloat<V, PanelF32>>("linear_f32", ""),
    kernel<LinearFloat<V, PanelBf16>>("linear_bf16", ""),
    kernel<LinearInt<V, Int8Row>>("linear_int8row", ""),
    kernel<LinearInt<V, Int8G32>>("linear_int8g32", ""),
    kernel<LinearInt<V, Int4G64>>("linear_int4g64", ""),
    kernel<LinearInt<V, Int4G32>>("linear_int4g32", ""),
    kernel<LinearP32<V, Int4P32>>("linear_int4p32", ""),
    kernel<LinearP32<V, Int5P32>>("linear_int5p32", ""),
    kernel<LinearP32<V, Int6P32>>("linear_int6p32", ""),
    kernel<LinearP32<Biased, Int4P32>>("linear_int4p32_biased", ""),
    kernel<LinearP32<Biased, Int5P32>>("linear_int5p32_biased", ""),
    kernel<LinearP32<Biased, Int6P32>>("linear_int6p32_biased", ""),
    kernel<LinearAffine<AffineDots<V>, Int4A256>>("linear_int4a256", ""),
    kernel<LinearAffine<AffineDots<V>, Int4A128>>("linear_int4a128", ""),
    kernel<LinearTiles<V, scalar::Tiles, Int8Row, 1>>("linear_int8row_tiles", ""),
    kernel<LinearTiles<V, scalar::Tiles, Int8G32, 1>>("linear_int8g32_tiles", ""),
    kernel<LinearTiles<V, scalar::Tiles, Int4G64, 1>>("linear_int4g64_tiles", ""),
    kernel<LinearTiles<V, scalar::Tiles, Int4G32, 1>>("linear_int4g32_tiles", ""),
    kernel<LinearTiles<V, scalar::Tiles, Int4P32, 1>>("linear_int4p32_tiles", ""),
    kernel<LinearTiles<V, scalar::Tiles, Int5P32, 1>>("linear_int5p32_tiles", ""),
    kernel<LinearTiles<V, scalar::Tiles, Int6P32, 1>>("linear_int6p32_tiles", ""),
    kernel<Shrink<V, ChainCore<PanelF32>>>("shrink_f32", ""),
    kernel<Shrink<V, ChainCore<PanelBf16>>>("shrink_bf16", ""),
    kernel<Shrink<V, IntCore<Int8Row>>>("shrink_int8", ""),
    kernel<Shrink<V, TileCore<scalar::Tiles, Int8Row>>>("shrink_int8_tiles", ""),
    kernel<Epilogue<V>>("epilogue", ""),
    kernel<Route<V>>("route", ""),
    kernel<Combine<V>>("combine", ""),
    kernel<Rope<V>>("rope", ""),
    kernel<KvAppend<V, KvF32<V>>>("kv_append_f32", ""),
    kernel<KvAppend<V, KvF16<V>>>("kv_append_f16", ""),
    kernel<KvAppend<V, KvInt8<V>>>("kv_append_int8", ""),
    kernel<KvAppend<V, KvInt8H<V>>>("kv_append_int8h", ""),
    kernel<KvAppend<V, KvK8V4H<V>>>("kv_append_k8v4h", ""),
    kernel<KvAppend<V, KvInt4H<V>>>("kv_append_int4h", ""),
    kernel<KvAppend<V, KvFp8H<V>>>("kv_append_fp8h", ""),
    kernel<KvAppend<V, KvInt8I<V>>>("kv_append_int8i", ""),
    kernel<KvAppend<V, KvInt8HI<V>>>("kv_append_int8hi", ""),
    kernel<KvAppend<V, KvK8V4HI<V>>>("kv_append_k8v4hi", ""),
    kernel<KvAppend<V, KvInt4HI<V>>>("kv_append_int4hi", ""),
    kernel<AttentionRows<V, AttentionF32<V>>>("attention_f32_rows", ""),
    kernel<AttentionSplits<V, AttentionF32<V>>>("attention_f32_splits", ""),
    kernel<AttentionRows<V, AttentionF16<V>>>("attention_f16_rows", ""),
    kernel<AttentionSplits<V, AttentionF16<V>>>("attention_f16_splits", ""),
    kernel<AttentionRows<V, AttentionInt8<V>>>("attention_int8_rows", ""),
    kernel<AttentionSplits<V, AttentionInt8<V>>>("attention_int8_splits", ""),
    kernel<AttentionRows<V, AttentionInt8H<V>>>("attention_int8h_rows", ""),
    kernel<AttentionSplits<V, AttentionInt8H<V>>>("attention_int8h_splits", ""),
    kernel<AttentionRows<V, AttentionK8V4H<V>>>("attention_k8v4h_rows", ""),
    kernel<AttentionSplits<V, AttentionK8V4H<V>>>("attention_k8v4h_splits", ""),
    kernel<AttentionTiles<V, AttentionInt8Tiles<V, scalar::Tiles>, 1>>("attention_int8_tiles", ""),
    kernel<AttentionTiles<V, AttentionInt8HTiles<V, scalar::Tiles>, 1>>("attention_int8h_tiles", ""),
    kernel<AttentionTiles<V, AttentionK8V4HTiles<V, scalar::Tiles>, 1>>("attention_k8v4h_tiles", ""),
    kernel<AttentionTiles<V, AttentionInt8ITiles<V, scalar::Tiles>, 1>>("attention_int8i_tiles", ""),
    kernel<AttentionTiles<V, AttentionInt8HITiles<V, scalar::Tiles>, 1>>("attention_int8hi_tiles", ""),
    kernel<AttentionTiles<V, AttentionK8V4HITiles<V, scalar::Tiles>, 1>>("attention_k8v4hi_tiles", ""),
    kernel<AttentionRows<V, AttentionInt4H<V>>>("attention_int4h_rows", ""),
    kernel<AttentionSplits<V, AttentionInt4H<V>>>("attention_int4h_splits", ""),
    kernel<AttentionRows<V, AttentionFp8H<V>>>("attention_fp8h_rows", ""),
    kernel<AttentionSplits<V, AttentionFp8H<V>>>("attention_fp8h_splits", ""),
    kernel<AttentionRows<V, AttentionInt8I<V>>>("attention_int8i_rows", ""),
    kernel<AttentionSplits<V, AttentionInt8I<V>>>("attention_int8i_splits", ""),
    kernel<AttentionRows<V, AttentionInt8HI<V>>>("attention_int8hi_rows", ""),
    kernel<AttentionSplits<V, AttentionInt8HI<V>>>("attention_int8hi_splits", ""),
    kernel<AttentionRows<V, AttentionK8V4HI<V>>>("attention_k8v4hi_rows", ""),
    kernel<AttentionSplits<V, AttentionK8V4HI<V>>>("attention_k8v4hi_splits", ""),
    kernel<AttentionRows<V, AttentionInt4HI<V>>>("attention_int4hi_rows", ""),
    kernel<AttentionSplits<V, AttentionInt4HI<V>>>("attention_int4hi_splits", ""),
};
constexpr int kCount = sizeof table / sizeof *table;

struct Pointers {
  const infeng_kernel* at[kCount];
  constexpr Pointers() : at{} {
    for (int i = 0; i < kCount; ++i) at[i] = table + i;
  }
};
constexpr Pointers pointers;

}  // namespace
}  // namespace infeng

extern "C" infeng_status infeng_library(const infeng_host*, infeng_library_desc* out) {
  out->abi_major = INFENG_ABI_MAJOR;
  out->abi_minor = INFENG_ABI_MINOR;
  out->name = "scalar";
  out->version = "0";
  out->kernels = infeng::pointers.at;
  out->kernel_count = infeng::kCount;
  return INFENG_OK;
}
