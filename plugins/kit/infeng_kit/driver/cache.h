// Cases of the ops over the paged cache: kv_append and attention. SPDX-License-Identifier: Apache-2.0
#pragma once

#include "epilogues.h"

inline constexpr uint32_t kCacheFormats[] = {INFENG_KV_F32,     INFENG_KV_F16,     INFENG_KV_INT8,   INFENG_KV_INT8_H,
                                             INFENG_KV_K8V4_H,  INFENG_KV_INT4_H,  INFENG_KV_FP8_H,  INFENG_KV_INT8_I,
                                             INFENG_KV_INT8_HI, INFENG_KV_K8V4_HI, INFENG_KV_INT4_HI};

struct Cache {
  uint32_t format = 0;
  int64_t blocks = 0, heads = 0, dim = 0;
  Bytes data;
  infeng_kv_cache view() const {
    infeng_kv_cache c{};
    const int64_t k = up(k_is_nibbles() ? dim * 8 : up(dim, 4) * 16 * number(), 64),
                  v = up(nibbles() ? up(dim, 16) * 8 : (lines() ? up(dim, 16) : dim) * 16 * number(), 64);
    c.struct_size = sizeof c;
    c.format = format;
    c.base = data.as<void>();
    c.v_offset = k;
    c.k_scale_offset = k + v;
    c.v_scale_offset = k + v + 64;
    c.head_stride = k + v + (number() == 1 ? 128 : 0);
    c.block_stride = c.head_stride * heads;
    c.block_tokens = 16;
    c.block_count = int32_t(blocks);
    c.kv_heads = int32_t(heads);
    c.head_dim = c.v_head_dim = int32_t(dim);
    return c;
  }
  int64_t number() const { return format == INFENG_KV_F32 ? 4 : format == INFENG_KV_F16 ? 2 : 1; }  // bytes
  bool k_is_nibbles() const { return format == INFENG_KV_INT4_H || format == INFENG_KV_INT4_HI; }
  bool has_signs() const { return format == INFENG_KV_K8V4_HI || format == INFENG_KV_INT4_HI; }             // scales
  bool nibbles() const { return format == INFENG_KV_INT4_H || format == INFENG_KV_K8V4_H || has_signs(); }  // of V
  bool lines() const { return format == INFENG_KV_INT8_I || format == INFENG_KV_INT8_HI; }  // of V, padded
  void allocate() { data = Bytes(view().block_stride * blocks); }
  void randomize() {
    allocate();
    const infeng_kv_cache c = view();
    for (int64_t i = 0; i < blocks * heads; ++i) {
      uint8_t* slab = data.as<uint8_t>(i * c.head_stride);
      if (format == INFENG_KV_F32) {
        for (int64_t j = 0; j < dim * 32; ++j) reinterpret_cast<float*>(slab)[j] = uniform();
        continue;
      }
      if (format == INFENG_KV_F16) {
        for (int64_t j = 0; j < dim * 32; ++j)
          reinterpret_cast<uint16_t*>(slab)[j] = uint16_t(random_half() | pick(0, 1) << 15);
        continue;
      }
      for (int64_t j = 0; j < c.v_offset; ++j) slab[j] = uint8_t(1 + rng() % 255);
      for (int64_t j = c.v_offset; j < c.k_scale_offset; ++j) slab[j] = uint8_t(int8_t(int(rng() % 255) - 127));
      for (int64_t j = 0; format == INFENG_KV_FP8_H && j < c.k_scale_offset; ++j)
        slab[j] = uint8_t(pick(0, 0x7e) | pick(0, 1) << 7);
      for (int j = 0; j < 32; ++j) reinterpret_cast<float*>(slab + c.k_scale_offset)[j] = std::fabs(normal()) * 0.02f;
      for (int j = 0; has_signs() && j < 32; ++j)
        if (chance(0.5)) reinterpret_cast<float*>(slab + c.k_scale_offset)[j] *= -1.0f;
    }
  }
};

// Segments over shuffled blocks; some are empty.
struct Segments {
  std::vector<infeng_kv_segment> list;
  std::vector<std::vector<int32_t>> tables;
  int64_t rows = 0, blocks = 0, longest = 0;
  Segments() = default;
  explicit Segments(const std::vector<std::pair<int64_t, int64_t>>& shape) {  // (rows, pos0)
    for (const auto& [count, pos0] : shape) blocks += up(pos0 + count, 16) / 16;
    std::vector<int32_t> order;
    for (int32_t i = 0; i < blocks; ++i) order.push_back(i);
    std::shuffle(order.begin(), order.end(), rng);
    size_t used = 0;
    for (const auto& [count, pos0] : shape) {
      const size_t need = size_t(up(pos0 + count, 16) / 16);
      tables.emplace_back(order.begin() + int64_t(used), order.begin() + int64_t(used + need));
      used += need;
      list.push_back({int32_t(rows), int32_t(rows + count), int32_t(pos0), int32_t(pos0 + count), nullptr});
      rows += count;
      longest = std::max(longest, pos0 + count);
    }
  }
  const infeng_kv_segment* build() {
    for (size_t i = 0; i < list.size(); ++i) list[i].block_table = tables[i].data();
    return list.data();
  }
};

inline const std::vector<std::vector<std::pair<int64_t, int64_t>>> kShapes = {
    {{1, 0}},   {{1, 15}},
    {{1, 255}}, {{1, 256}},
    {{1, 700}}, {{3, 0}},
    {{5, 253}}, {{1, 40}, {0, 0}, {1, 300}, {1, 17}},
    {{8, 509}}, {{0, 0}, {7, 3}, {0, 9}, {1, 600}},
    {{33, 0}},  {{40, 250}, {1, 77}, {20, 0}},
    {{290, 20}}};

struct AppendState : State<infeng_kv_append_args> {
  Segments segments;
  Cache cache;
  Bytes x;
  infeng_kv_cache view{};
  infeng_args& args() {
    const int64_t stride = 2 * cache.heads * cache.dim;
    a.k = heads_view(x, segments.rows, cache.heads, cache.dim, stride);
    a.v = heads_view(x, segments.rows, cache.heads, cache.dim, stride, stride / 2);
    view = cache.view();
    a.cache = &view;
    a.segments = segments.build();
    a.segment_count = int32_t(segments.list.size());
    a.segment_stride = sizeof(infeng_kv_segment);
    return finish(segments.rows);
  }
  bool same(const AppendState& o) const { return cache.data == o.cache.data; }
  bool intact() const { return cache.data.intact(); }
};

inline void check_kv_append(Checker& c) {
  for (const uint32_t format : kCacheFormats)
    for (const int64_t dim : {8, 64, 80, 96, 128, 256})
      for (const auto& shape : kShapes) {
        if (c.skips()) continue;
        AppendState s;
        s.segments = Segments(shape);
        s.cache = {format, s.segments.blocks, pick(1, 3), dim, Bytes()};
        infeng_problem p = problem_of(c.kernel, s.segments.rows);
        p.kv_format = format, p.heads = p.kv_heads = int32_t(s.cache.heads), p.head_dim = p.v_head_dim = int32_t(dim);
        p.context = s.segments.longest;
        if (!serves(c.kernel, p)) continue;
        s.cache.allocate();
        s.x = floats(s.segments.rows * 2 * s.cache.heads * dim);
        for (int64_t i = 0; i < dim; ++i)
          if (chance(0.2)) s.x.as<float>()[i] = 0;
        c.compare(p, s, text("format %ld dim %ld rows %ld", format, dim, s.segments.rows));
      }
}

struct AttentionState : State<infeng_attention_args> {
  Segments segments;
  std::shared_ptr<Cache> cache;
  int64_t heads = 0;
  Bytes q, out, sinks;
  infeng_kv_cache view{};
  infeng_args& args() {
    const int64_t dim = cache->dim;
    a.sinks = sinks.size() ? sinks.as<float>() : nullptr;
    a.q = heads_view(q, segments.rows, heads, dim, heads * dim);
    if (out.size()) a.out = matrix(out, INFENG_F32, segments.rows, heads * dim, heads * dim);
    view = cache->view();
    a.cache = &view;
    a.segments = segments.build();
    a.segment_count = int32_t(segments.list.size());
    a.segment_stride = sizeof(infeng_kv_segment);
    a.scale = 1.0f / std::sqrt(float(dim));
    return finish(segments.rows);
  }
  bool same(const AttentionState& o) const { return out == o.out && list.act == o.list.act; }
  bool intact() const { return out.intact() && list.act.intact(); }
};

inline void check_attention(Checker& c) {
  for (const uint32_t format : kCacheFormats)
    for (const int64_t dim : {8, 64, 80, 96, 128, 256})
      for (const auto& shape : kShapes)
        for (const int64_t shared : {1, 2, 3, 4, 7, 8}) {
          const int64_t rows = Segments(shape).rows;
          if (rows > 20 && (dim > 96 || shared % 2 == 0) && !chance(0.1)) continue;
          if (rows <= 20 && !chance(0.5)) continue;
          if (c.skips()) continue;
          AttentionState s;
          s.segments = Segments(shape);
          s.cache = std::make_shared<Cache>(Cache{format, s.segments.blocks, pick(1, 2), dim, Bytes()});
          s.heads = s.cache->heads * shared;
          s.a.window = chance(0.4) ? int32_t(pick(1, 400)) : 0;
          infeng_problem p = problem_of(c.kernel, rows);
          p.kv_format = format, p.heads = int32_t(s.heads), p.kv_heads = int32_t(s.cache->heads),
          p.head_dim = p.v_head_dim = int32_t(dim);
          p.context = s.segments.longest;
          if (!serves(c.kernel, p)) continue;  // before its list is made
          const bool quantize = dim % 64 == 0 && chance(0.5);
          s.list = List(quantize ? std::vector<uint32_t>{INFENG_EPILOGUE_QUANTIZE} : std::vector<uint32_t>{}, rows,
                        s.heads * dim, chance(0.5) ? 256 : 64 << pick(0, 1), chance(0.5));
          ask(p, s.list.kinds, s.list.rounding());
          if (s.a.window) p.needs |= INFENG_NEED_BIT(INFENG_NEED_WINDOW);
          if (chance(0.2)) {
            s.a.softcap = 1.5f;
            p.needs |= INFENG_NEED_BIT(INFENG_NEED_SOFTCAP);
          }
          if (chance(0.2)) {
            s.sinks = floats(s.heads, 2.0f);
            p.needs |= INFENG_NEED_BIT(INFENG_NEED_SINKS);
          }
          if (!serves(c.kernel, p)) continue;
          s.cache->randomize();
          s.q = floats(rows * s.heads * dim, 2.0f);
          s.out = Bytes(quantize && chance(0.5) ? 0 : rows * s.heads * dim * 4, 0x33);
          c.compare(p, s,
                    text("format %ld dim %ld rows %ld gqa %ld window %ld kv heads %ld", format, dim, rows, shared,
                         s.a.window, s.cache->heads));
        }
}
