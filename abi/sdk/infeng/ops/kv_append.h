// kv_append writes each row's k and v to its position in the cache. f32 is copied; f16 is rounded and clamped to
// +-65504; other formats quantize each token and head with one scale for K and one for V, and formats with an h
// in their names rotate first. A tile is one row.
// SPDX-License-Identifier: Apache-2.0
#ifndef INFENG_OPS_KV_APPEND_H
#define INFENG_OPS_KV_APPEND_H

#include <infeng/ops/kv.h>
#include <infeng/ops/quantize.h>

namespace infeng {
namespace {

template <Vector V>
struct KvF32 {
  static constexpr uint32_t kFormat = INFENG_KV_F32;

  static void append(const Slab& slab, int token, const float* k, const float* v, int dim) {
    float* column = slab.k<float>() + token;
    for (int d = 0; d < dim; ++d) column[d * kLanes] = k[d];
    float* row = slab.v<float>(token);
    for (int d = 0; d < dim; d += kLanes) V::store(row + d, V::load(v + d, dim - d), dim - d);
  }
};

template <Vector V>
struct KvF16 {
  static constexpr uint32_t kFormat = INFENG_KV_F16;

  static void append(const Slab& slab, int token, const float* k, const float* v, int dim) {
    alignas(64) uint16_t half[kMaxHeadDim];
    convert(k, dim, half);
    uint16_t* column = slab.k<uint16_t>() + token;
    for (int d = 0; d < dim; ++d) column[d * kLanes] = half[d];
    convert(v, dim, half);
    __builtin_memcpy(slab.v<uint16_t>(token), half, size_t(dim) * sizeof(uint16_t));
  }

 private:
  static void convert(const float* x, int dim, uint16_t* half) {
    for (int d = 0; d < dim; d += kLanes)
      V::store_f16(half + d, V::min(V::max(V::load(x + d, dim - d), V::set(-65504.0f)), V::set(65504.0f)));
  }
};

// K and V of the formats with scales; each has store(slab, token, x, dim).
template <Vector V>
struct StoreInt8K {
  static void store(const Slab& slab, int token, const float* k, int dim) {
    alignas(64) int8_t q[kMaxHeadDim];
    slab.k_scale()[token] = quantize<V>(k, dim, q, int(round_up(dim, kLanes))).scale;
    uint8_t* column = slab.k<uint8_t>() + 4 * token;
    for (int d = 0; d < dim; d += 4) {
      uint32_t four;
      __builtin_memcpy(&four, q + d, 4);
      four ^= 0x80808080u;  // q + 128 as unsigned bytes
      __builtin_memcpy(column + d / 4 * kLine, &four, 4);
    }
  }
};

template <Vector V>
struct StoreInt8V {
  static void store(const Slab& slab, int token, const float* v, int dim) {
    alignas(64) int8_t q[kMaxHeadDim];
    slab.v_scale()[token] = quantize<V>(v, dim, q, int(round_up(dim, kLanes))).scale;
    __builtin_memcpy(slab.v<int8_t>(token), q, size_t(dim));
  }
};

// V in lines of 16 columns of four tokens.
template <Vector V>
struct StoreInt8Lines {
  static void store(const Slab& slab, int token, const float* v, int dim) {
    alignas(64) int8_t q[kMaxHeadDim];
    const int padded = int(round_up(dim, kLanes));
    slab.v_scale()[token] = quantize<V>(v, dim, q, padded).scale;
    int8_t* line = slab.v<int8_t>(0) + token / 4 * 4 * padded + token % 4;
    for (int d = 0; d < padded; ++d) line[4 * d] = q[d];
  }
};

template <Vector V>
struct StoreInt4K {
  static void store(const Slab& slab, int token, const float* k, int dim) {
    alignas(64) int8_t q[kMaxHeadDim];
    slab.k_scale()[token] = quantize_int4<V>(k, dim, q, int(round_up(dim, kLanes)));
    uint8_t* column = slab.k<uint8_t>() + 4 * token;
    int d = 0;
    for (; d + kGroup <= dim; d += kGroup)
      for (int l = 0; l < kGroup / 8; ++l) pack(q + d + 4 * l, kGroup / 2, column + (d / 8 + l) * kLine);
    for (; d < dim; d += 8) pack(q + d, 4, column + d / 8 * kLine);
  }

 private:
  // Packs four elements into the low nibbles and the four at distance `far` into the high ones.
  static INFENG_INLINE void pack(const int8_t* q, int far, uint8_t* to) {
    uint32_t low, high;
    __builtin_memcpy(&low, q, 4);
    __builtin_memcpy(&high, q + far, 4);
    low |= high << 4;
    __builtin_memcpy(to, &low, 4);
  }
};

template <Vector V>
struct StoreInt4V {
  static void store(const Slab& slab, int token, const float* v, int dim) {
    alignas(64) int8_t q[kMaxHeadDim];
    slab.v_scale()[token] = quantize_int4<V>(v, dim, q, int(round_up(dim, kLanes)));
    uint64_t* row = slab.v<uint64_t>(token, kLanes);
    for (int d = 0; d < dim; d += kLanes) {
      uint64_t low, high;
      __builtin_memcpy(&low, q + d, 8);
      __builtin_memcpy(&high, q + d + 8, 8);
      row[d / kLanes] = low | high << 4;
    }
  }
};

// Nibbles of V in lines of 8 columns of four tokens; column d + 8 of 16 is above column d.
template <Vector V>
struct StoreInt4Lines {
  static void store(const Slab& slab, int token, const float* v, int dim) {
    alignas(64) int8_t q[kMaxHeadDim];
    const int padded = int(round_up(dim, kLanes));
    slab.v_scale()[token] = quantize_int4<V>(v, dim, q, padded);
    uint8_t* line = slab.v<uint8_t>(0) + token / 4 * 2 * padded + token % 4;
    for (int d = 0; d < padded; d += kLanes, line += kLine / 2)
      for (int i = 0; i < 8; ++i) line[4 * i] = uint8_t(q[d + i] | q[d + 8 + i] << 4);
  }
};

template <Vector V>
struct StoreE4m3K {
  static void store(const Slab& slab, int token, const float* k, int dim) {
    uint8_t code[kMaxHeadDim];
    slab.k_scale()[token] = quantize_e4m3<V>(k, dim, code);
    uint8_t* column = slab.k<uint8_t>() + token;
    for (int d = 0; d < dim; ++d) column[d * kLanes] = code[d];
  }
};

template <Vector V>
struct StoreE4m3V {
  static void store(const Slab& slab, int token, const float* v, int dim) {
    slab.v_scale()[token] = quantize_e4m3<V>(v, dim, slab.v<uint8_t>(token));
  }
};

template <uint32_t Format, class Keys, class Values>
struct KvPlain {
  static constexpr uint32_t kFormat = Format;

  static void append(const Slab& slab, int token, const float* k, const float* v, int dim) {
    Keys::store(slab, token, k, dim);
    Values::store(slab, token, v, dim);
  }
};
template <Vector V>
using KvInt8 = KvPlain<INFENG_KV_INT8, StoreInt8K<V>, StoreInt8V<V>>;
template <Vector V>
using KvInt8I = KvPlain<INFENG_KV_INT8_I, StoreInt8K<V>, StoreInt8Lines<V>>;

// Rotates K and V, then stores them.
template <Vector V, uint32_t Format, class Keys, class Values>
struct KvRotated {
  static constexpr uint32_t kFormat = Format;

  static void append(const Slab& slab, int token, const float* k, const float* v, int dim) {
    alignas(64) float x[kMaxHeadDim];
    const float inverse = 1.0f / float(hadamard_block(dim));
    hadamard<V>(k, dim, inverse, x);
    Keys::store(slab, token, x, dim);
    hadamard<V>(v, dim, inverse, x);
    Values::store(slab, token, x, dim);
  }
};
template <Vector V>
using KvInt8H = KvRotated<V, INFENG_KV_INT8_H, StoreInt8K<V>, StoreInt8V<V>>;
template <Vector V>
using KvInt8HI = KvRotated<V, INFENG_KV_INT8_HI, StoreInt8K<V>, StoreInt8Lines<V>>;
template <Vector V>
using KvK8V4H = KvRotated<V, INFENG_KV_K8V4_H, StoreInt8K<V>, StoreInt4V<V>>;
template <Vector V>
using KvInt4H = KvRotated<V, INFENG_KV_INT4_H, StoreInt4K<V>, StoreInt4V<V>>;
template <Vector V>
using KvK8V4HI = KvRotated<V, INFENG_KV_K8V4_HI, StoreInt8K<V>, StoreInt4Lines<V>>;
template <Vector V>
using KvInt4HI = KvRotated<V, INFENG_KV_INT4_HI, StoreInt4K<V>, StoreInt4Lines<V>>;
template <Vector V>
using KvFp8H = KvRotated<V, INFENG_KV_FP8_H, StoreE4m3K<V>, StoreE4m3V<V>>;

template <Vector V, class Cache>
struct KvAppend {
  static constexpr uint32_t kOp = INFENG_OP_KV_APPEND;
  static constexpr uint32_t kFuses = 0;

  static int32_t accepts(const infeng_problem* p) {
    return p->op == kOp && p->kv_format == Cache::kFormat && p->epilogue_count == 0 &&
           head_dim_fits(Cache::kFormat, p->head_dim);
  }

  static int64_t tiles(const infeng_args* args, int32_t) { return args->rows; }

  static infeng_status run(const infeng_args* common, int32_t, int64_t first, int64_t last, infeng_worker* worker) {
    const auto& args = *(const infeng_kv_append_args*)common;
    const infeng_kv_cache& cache = *args.cache;
    if (!cache_fits(cache, Cache::kFormat))
      return fail(worker, INFENG_INVALID_ARGUMENT, "cache has another format or block size");
    for (int32_t i = 0; i < args.segment_count; ++i) {
      const infeng_kv_segment& s = *segment_at(args.segments, args.segment_stride, i);
      for (int64_t row = max_of(first, s.row_begin); row < min_of(last, s.row_end); ++row) {
        const int64_t position = s.pos0 + (row - s.row_begin);
        const int32_t block = s.block_table[position / kLanes];
        if (block < 0 || block >= cache.block_count)
          return fail(worker, INFENG_INVALID_ARGUMENT, "block lies outside the cache");
        for (int32_t head = 0; head < cache.kv_heads; ++head)
          Cache::append(slab_at(cache, block, head), int(position % kLanes),
                        row_of<float>(args.k, row) + head * args.k.strides[1],
                        row_of<float>(args.v, row) + head * args.v.strides[1], cache.head_dim);
      }
    }
    return INFENG_OK;
  }
};

}  // namespace
}  // namespace infeng
#endif  // INFENG_OPS_KV_APPEND_H
