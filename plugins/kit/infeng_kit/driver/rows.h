// Cases of the ops over rows: linear, epilogue, rmsnorm, layernorm, embed, rope, shrink. SPDX-License-Identifier:
// Apache-2.0
#pragma once

#include "epilogues.h"

struct LinearState : State<infeng_linear_args> {
  std::shared_ptr<PackedWeight> weight;
  int64_t rows = 0;
  Activation in;
  infeng_activation in_view{};
  Bytes x, out;
  bool has_out = true;
  int64_t later = -1;  // bytes of memory that a later op reads; -1 without FETCH
  std::vector<infeng_range> ranges;
  infeng_fetch fetch{};
  infeng_extension unknown{};
  infeng_args& args() {
    in_view = in.view();
    a.in = &in_view;
    if (later >= 0) {
      ranges = {{weight->data.as<void>(), 0}, {weight->data.as<void>(7), later}, {x.as<void>(), 1}};
      fetch = {{sizeof fetch, INFENG_EXTENSION_FETCH, nullptr}, ranges.data(), int64_t(ranges.size())};
      unknown = {sizeof unknown, 99, &fetch.head};
      a.common.next = &unknown;
    }
    if (x.size()) in_view.x = matrix(x, INFENG_F32, rows, weight->view.k, weight->view.k);
    a.weight = &weight->view;
    if (has_out) a.out = matrix(out, INFENG_F32, rows, list.width(), list.width());
    return finish(rows);
  }
  bool same(const LinearState& o) const { return out == o.out && list.act == o.list.act; }
  bool intact() const { return out.intact() && list.act.intact(); }
};

inline uint32_t act_of(int64_t group) {
  switch (group) {
    case 128:
      return INFENG_ACT_INT8_G128;
    case 256:
      return INFENG_ACT_INT8_G256;
    case INFENG_GROUP_ROW:
      return INFENG_ACT_INT8_ROW;
    default:
      return INFENG_ACT_INT8_G64;
  }
}

// Whether the kernel multiplies the format at all.
inline bool multiplies(const infeng_kernel& kernel, uint32_t format) {
  infeng_problem p = problem_of(kernel, 1);
  p.rows_max = 1024;
  p.weight_format = format;
  p.act_format = format >= INFENG_WEIGHT_INT8_ROW ? INFENG_ACT_INT8_G64 : INFENG_ACT_F32;
  p.n = p.k = 64;
  return serves(kernel, p);
}

inline void check_linear(Checker& c) {
  for (const uint32_t format : kWeightFormats) {
    if (!multiplies(c.kernel, format)) continue;
    const bool integer = format >= INFENG_WEIGHT_INT8_ROW;
    for (const int64_t k : {8, 64, 172, 576, 896, 1216})
      for (const int64_t n : {16, 40, 172, 256, 344, 896})
        for (const int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 12, 13, 18, 19, 31, 129, 300, 1000}) {
          if (rows > 31 && n * k > 172 * 576) continue;
          if (rows == 1000 && n * k > 172 * 172) continue;
          for (size_t i = 0; i < 2; ++i) {
            if (c.skips()) continue;
            const auto& kinds = lists()[size_t(pick(0, int64_t(lists().size()) - 1))];
            const int64_t outputs = up(n, mask_of(kinds) & INFENG_EPILOGUE_BIT(INFENG_EPILOGUE_GATED_MUL) ? 32 : 16);
            infeng_problem p = problem_of(c.kernel, rows);
            p.rows_min = 1;  // a kernel that accepts many rows must also be correct for few
            p.rows_max = up(rows, 64);
            p.weight_format = format;
            const bool sub_scaled = format >= INFENG_WEIGHT_INT4_P32 && format <= INFENG_WEIGHT_INT6_P32;
            int64_t group = sub_scaled ? Activation::random_group() : 64;
            if (format == INFENG_WEIGHT_INT8_ROW && chance(0.5)) group = INFENG_GROUP_ROW;
            p.act_format = integer ? act_of(group) : INFENG_ACT_F32;
            p.n = outputs;
            p.k = k;
            LinearState s;
            s.list = List(kinds, rows, outputs, Activation::random_group(), chance(0.5));
            ask(p, kinds, s.list.rounding(), s.list.segments.has_tails());
            if (!serves(c.kernel, p)) continue;
            s.rows = rows;
            s.weight = std::make_shared<PackedWeight>(format, outputs, k);
            if (integer) {
              s.in = Activation(rows, k, group);
              s.in.randomize();
            } else {
              s.x = floats(rows * k);
            }
            s.has_out = !(mask_of(kinds) & INFENG_EPILOGUE_BIT(INFENG_EPILOGUE_QUANTIZE)) || chance(0.5);
            s.out = Bytes(s.has_out ? rows * s.list.width() * 4 : 0, 0x33);
            if (chance(0.3)) s.later = pick(0, 1 << 16);
            c.compare(p, s,
                      text("format %ld n %ld k %ld rows %ld epilogues %ld group %ld, groups made %ld", format, outputs,
                           k, rows, mask_of(kinds), group, s.list.act.group));
          }
        }
  }
}

struct EpilogueState : State<infeng_epilogue_args> {
  int64_t rows = 0, n = 0;
  Bytes in, out;
  bool in_place = false;
  infeng_args& args() {
    a.in = matrix(in, INFENG_F32, rows, n, n);
    a.out = in_place ? a.in : matrix(out, INFENG_F32, rows, list.width(), list.width());
    if (in_place) a.out.shape[1] = list.width();
    return finish(rows);
  }
  bool same(const EpilogueState& o) const { return in == o.in && out == o.out && list.act == o.list.act; }
  bool intact() const { return in.intact() && out.intact() && list.act.intact(); }
};

inline void check_epilogue(Checker& c) {
  for (const int64_t n : {8, 64, 172, 352, 576, 896, 1024})
    for (const int64_t rows : {1, 3, 70})
      for (const auto& kinds : lists())
        for (const bool in_place : {false, true}) {
          if (c.skips()) continue;
          infeng_problem p = problem_of(c.kernel, rows);
          p.n = n;
          if (n % 32 != 0 && mask_of(kinds) & INFENG_EPILOGUE_BIT(INFENG_EPILOGUE_GATED_MUL)) continue;
          EpilogueState s;
          s.list = List(kinds, rows, n, Activation::random_group(), chance(0.5));
          ask(p, kinds, s.list.rounding(), s.list.segments.has_tails());
          if (!serves(c.kernel, p)) continue;
          s.rows = rows;
          s.n = n;
          s.in_place = in_place;
          s.in = floats(rows * n, 3.0f);
          s.out = Bytes(in_place ? 0 : rows * s.list.width() * 4, 0x33);
          c.compare(p, s, text("n %ld rows %ld epilogues %ld in place %ld", n, rows, mask_of(kinds), in_place));
        }
}

// Draws what all norms have: with bit 0 of the variant a QUANTIZE step, with bit 1 gathered rows. Returns the problem.
template <class NormState>
infeng_problem norm_case(const infeng_kernel& kernel, NormState& s, int64_t rows, int64_t k, int variant) {
  s.list = List(variant & 1 ? std::vector<uint32_t>{INFENG_EPILOGUE_QUANTIZE} : std::vector<uint32_t>{}, rows, k,
                Activation::random_group(), chance(0.5));
  s.rows = rows;
  s.k = k;
  s.x = floats((rows + 3) * k, variant == 1 ? 1e-30f : 1.0f);
  s.weight = floats(k);
  infeng_problem p = problem_of(kernel, rows);
  p.n = p.k = k;
  ask(p, s.list.kinds, s.list.rounding());
  if (variant & 2) {
    for (int64_t i = 0; i < rows; ++i) s.index.push_back(int32_t(pick(0, rows + 2)));
    p.needs |= INFENG_NEED_BIT(INFENG_NEED_ROW_GATHER);
  }
  return p;
}

struct RmsnormState : State<infeng_rmsnorm_args> {
  int64_t rows = 0, k = 0;
  Bytes x, weight, out;
  std::vector<int32_t> index;
  infeng_args& args() {
    a.x = matrix(x, INFENG_F32, rows + 3, k, k);
    a.row_index = index.empty() ? nullptr : index.data();
    a.weight = vector_view(weight, k);
    if (out.size()) a.out = matrix(out, INFENG_F32, rows, k, k);
    a.eps = 1e-5f;
    return finish(rows);
  }
  bool same(const RmsnormState& o) const { return out == o.out && list.act == o.list.act; }
  bool intact() const { return out.intact() && list.act.intact(); }
};

inline void check_rmsnorm(Checker& c) {
  for (const int64_t k : {8, 64, 172, 576, 896, 2048})
    for (const int64_t rows : {1, 4, 65})
      for (const int variant : {0, 1, 2, 3}) {
        if (c.skips()) continue;
        RmsnormState s;
        infeng_problem p = norm_case(c.kernel, s, rows, k, variant);
        s.out = Bytes(variant == 3 ? 0 : rows * k * 4, 0x33);
        if (serves(c.kernel, p)) c.compare(p, s, text("k %ld rows %ld variant %ld", k, rows, variant));
        s.a.offset = 1.0f;
        p.needs |= INFENG_NEED_BIT(INFENG_NEED_NORM_OFFSET);
        if (serves(c.kernel, p)) c.compare(p, s, text("k %ld rows %ld variant %ld, offset", k, rows, variant));
      }
}

struct LayernormState : State<infeng_layernorm_args> {
  int64_t rows = 0, k = 0;
  Bytes x, weight, bias, out;
  std::vector<int32_t> index;
  bool in_place = false;
  infeng_args& args() {
    a.x = matrix(x, INFENG_F32, rows + 3, k, k);
    a.row_index = index.empty() ? nullptr : index.data();
    a.weight = vector_view(weight, k);
    a.bias = vector_view(bias, k);
    if (in_place) a.out = matrix(x, INFENG_F32, rows, k, k);
    if (out.size()) a.out = matrix(out, INFENG_F32, rows, k, k);
    a.eps = 1e-5f;
    return finish(rows);
  }
  bool same(const LayernormState& o) const { return x == o.x && out == o.out && list.act == o.list.act; }
  bool intact() const { return x.intact() && out.intact() && list.act.intact(); }
};

inline void check_layernorm(Checker& c) {
  for (const int64_t k : {8, 64, 172, 576, 896, 2048})
    for (const int64_t rows : {1, 4, 65})
      for (const int variant : {0, 1, 2, 3, 4}) {  // 4: in place
        if (c.skips()) continue;
        LayernormState s;
        const infeng_problem p = norm_case(c.kernel, s, rows, k, variant);
        s.in_place = variant == 4;
        s.bias = floats(k);
        s.out = Bytes(variant >= 3 ? 0 : rows * k * 4, 0x33);
        if (serves(c.kernel, p)) c.compare(p, s, text("k %ld rows %ld variant %ld", k, rows, variant));
      }
}

struct EmbedState : State<infeng_embed_args> {
  std::shared_ptr<PackedWeight> weight;
  std::vector<int32_t> ids;
  Bytes out;
  infeng_args& args() {
    a.ids = ids.data();
    a.weight = &weight->view;
    a.out = matrix(out, INFENG_F32, int64_t(ids.size()), weight->view.k, weight->view.k);
    return finish(int64_t(ids.size()));
  }
  bool same(const EmbedState& o) const { return out == o.out; }
  bool intact() const { return out.intact(); }
};

inline void check_embed(Checker& c) {
  for (const uint32_t format : kWeightFormats)
    for (const int64_t k : {8, 64, 172, 576, 896}) {
      infeng_problem p = problem_of(c.kernel, 50);
      p.weight_format = format;
      p.k = k;
      p.n = 64;
      if (!c.wants(p)) continue;
      EmbedState s;
      s.weight = std::make_shared<PackedWeight>(format, 50, k);
      for (int32_t id = 0; id < 50; ++id) s.ids.push_back(id);
      s.out = Bytes(50 * k * 4, 0x33);
      c.compare(p, s, text("format %ld k %ld", format, k));
    }
}

struct RopeState : State<infeng_rope_args> {
  int64_t rows = 0, heads = 0, kv_heads = 0, dim = 0, rot = 0;
  Bytes x, cos, sin, norms, scale;
  std::vector<int32_t> positions;
  infeng_args& args() {
    const int64_t stride = (heads + kv_heads) * dim + 3;
    a.q = heads_view(x, rows, heads, dim, stride);
    a.k = heads_view(x, rows, kv_heads, dim, stride, heads * dim);
    a.positions = positions.data();
    a.cos = matrix(cos, INFENG_F32, 100, rot / 2, rot / 2);
    a.sin = matrix(sin, INFENG_F32, 100, rot / 2, rot / 2);
    a.q_norm = norms.size() ? norms.as<float>() : nullptr;
    a.k_norm = norms.size() ? norms.as<float>() + dim : nullptr;
    a.q_scale = scale.size() ? scale.as<float>() : nullptr;
    a.eps = 1e-5f;
    return finish(rows);
  }
  bool same(const RopeState& o) const { return x == o.x; }
  bool intact() const { return x.intact(); }
};

inline void check_rope(Checker& c) {
  for (const int64_t dim : {8, 64, 80, 96, 128, 256})
    for (const int64_t rot : {dim, dim / 2, int64_t(6)})
      for (const int64_t rows : {1, 5}) {
        if (c.skips()) continue;
        RopeState s;
        s.rows = rows, s.heads = 3, s.kv_heads = 1, s.dim = dim, s.rot = rot;
        s.x = floats(rows * (4 * dim + 3));
        s.cos = floats(100 * rot / 2);
        s.sin = floats(100 * rot / 2);
        for (int64_t i = 0; i < rows; ++i) s.positions.push_back(int32_t(pick(0, 99)));
        infeng_problem p = problem_of(c.kernel, rows);
        p.heads = 3, p.kv_heads = 1, p.head_dim = p.v_head_dim = int32_t(dim);
        if (serves(c.kernel, p)) c.compare(p, s, text("dim %ld rot %ld rows %ld", dim, rot, rows));
        s.norms = floats(2 * dim);
        s.scale = floats(100);
        p.needs = INFENG_NEED_BIT(INFENG_NEED_ROPE_NORM) | INFENG_NEED_BIT(INFENG_NEED_ROPE_SCALE);
        if (serves(c.kernel, p)) c.compare(p, s, text("dim %ld rot %ld rows %ld, normed and scaled", dim, rot, rows));
      }
}

struct ShrinkState : State<infeng_shrink_args> {
  int64_t rows = 0, k = 0;
  LoraSegments segments;
  Activation in;
  infeng_activation in_view{};
  Bytes x, u;
  infeng_args& args() {
    in_view = in.view();
    if (x.size()) in_view.x = matrix(x, INFENG_F32, rows, k, k);
    a.in = &in_view;
    a.u = matrix(u, INFENG_F32, rows, segments.columns, segments.columns);
    a.segments = segments.build();
    a.segment_count = int32_t(segments.count());
    a.segment_stride = sizeof *a.segments;
    return finish(rows);
  }
  bool same(const ShrinkState& o) const { return u == o.u; }
  bool intact() const { return u.intact(); }
};

inline void check_shrink(Checker& c) {
  for (const uint32_t format : {INFENG_WEIGHT_F32, INFENG_WEIGHT_BF16, INFENG_WEIGHT_INT8_ROW})
    for (const int64_t k : {8, 61, 64, 172, 576, 1216})
      for (const int64_t rows : {1, 2, 4, 7, 9, 16, 33, 64, 65, 150}) {
        const bool integer = format == INFENG_WEIGHT_INT8_ROW;
        infeng_problem p = problem_of(c.kernel, rows);
        p.rows_max = up(rows, 64);
        p.weight_format = format;
        const int64_t group = integer && chance(0.5) ? INFENG_GROUP_ROW : 64;
        p.act_format = integer ? act_of(group) : INFENG_ACT_F32;
        p.n = 256;
        p.k = k;
        for (int i = 0; i < 4; ++i) {
          const bool has_tails = integer && i == 3;
          p.needs = has_tails ? INFENG_NEED_BIT(INFENG_NEED_LORA_I8T4) : 0;
          if (!c.wants(p)) continue;
          ShrinkState s;
          s.rows = rows;
          s.k = k;
          s.segments = shrinking(rows, format, k, has_tails);
          if (integer) {
            s.in = Activation(rows, k, group);
            s.in.randomize();
          } else {
            s.x = floats(rows * k);
          }
          s.u = Bytes(rows * s.segments.columns * 4, 0x33);
          c.compare(p, s, text("format %ld k %ld rows %ld group %ld", format, k, rows, group));
        }
      }
}
