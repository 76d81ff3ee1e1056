// Runs every kernel of a library on random problems of awkward sizes and compares each result with the reference
// kernels', byte for byte. Native, so that it can be built with sanitizers:
//   conformance REFERENCE.so CANDIDATE.so [features] [kernel prefix]
// Prints one line per kernel; exit status 1 if any differs. SPDX-License-Identifier: Apache-2.0
#include "conformance.h"

#include <algorithm>

namespace {

struct Checker {
  const Library& reference;
  const infeng_kernel& kernel;
  int cases = 0;
  int failures = 0;

  // Runs the kernel and the reference; `fresh` makes args over new outputs, `same` compares them.
  template <class State>
  void compare(const infeng_problem& problem, const State& input, const std::string& what) {
    if (!kernel.accepts(&problem)) return;
    const infeng_kernel* judge = reference.find(problem);
    if (!judge) Library::die("the reference has no kernel for %s", kernel.name);
    State expected = input, actual = input;
    execute(*judge, problem, expected.args());
    execute(kernel, problem, actual.args());
    ++cases;
    const bool same = expected.same(actual), intact = actual.intact();
    if (same && intact) return;
    if (failures++ < 5) printf("  %s: %s %s\n", kernel.name, what.c_str(), intact ? "differs" : "wrote past the end");
  }
};

infeng_problem problem_of(const infeng_kernel& kernel, int64_t rows) {
  infeng_problem p{};
  p.struct_size = sizeof p;
  p.op = kernel.op;
  p.rows_min = rows;
  p.rows_max = rows;
  p.workers = 3;
  return p;
}

std::string text(const char* format, long a, long b = 0, long c = 0, long d = 0, long e = 0, long f = 0) {
  char buffer[160];
  snprintf(buffer, sizeof buffer, format, a, b, c, d, e, f);
  return buffer;
}

// ------------------------------------------------------------------------------------------------- epilogue lists

struct List {
  std::vector<uint32_t> kinds;
  int64_t rows = 0, columns = 0;  // of the op's result
  Bytes bias, scale, residual;
  Activation act;
  std::vector<infeng_epilogue> built;

  List() = default;
  List(std::vector<uint32_t> k, int64_t rows_, int64_t columns_) : kinds(std::move(k)), rows(rows_), columns(columns_) {
    int64_t width = columns;
    for (uint32_t kind : kinds) {
      if (kind == INFENG_EPILOGUE_SILU_MUL) width /= 2;
      if (kind == INFENG_EPILOGUE_QUANTIZE) act = Activation(rows, width);
    }
    bias = floats(columns);
    scale = floats(columns);
    residual = floats(rows * width);
  }
  uint32_t mask() const {
    uint32_t m = 0;
    for (uint32_t kind : kinds) m |= INFENG_EPILOGUE_BIT(kind);
    return m;
  }
  int64_t width() const { return mask() & INFENG_EPILOGUE_BIT(INFENG_EPILOGUE_SILU_MUL) ? columns / 2 : columns; }
  const infeng_epilogue* build() {
    built.clear();
    int64_t now = columns;
    for (uint32_t kind : kinds) {
      infeng_epilogue e{};
      e.struct_size = sizeof e;
      e.kind = kind;
      if (kind == INFENG_EPILOGUE_SILU_MUL) now /= 2;
      if (kind == INFENG_EPILOGUE_BIAS) e.operand = vector_view(bias, now);
      if (kind == INFENG_EPILOGUE_ROW_SCALE) e.operand = vector_view(scale, now);
      if (kind == INFENG_EPILOGUE_RESIDUAL) e.operand = matrix(residual, INFENG_F32, rows, width(), width());
      if (kind == INFENG_EPILOGUE_QUANTIZE) e.act = act.view();
      built.push_back(e);
    }
    return built.data();
  }
};

const std::vector<std::vector<uint32_t>>& lists() {
  constexpr uint32_t B = INFENG_EPILOGUE_BIAS, S = INFENG_EPILOGUE_ROW_SCALE, R = INFENG_EPILOGUE_RESIDUAL,
                     U = INFENG_EPILOGUE_SILU_MUL, Q = INFENG_EPILOGUE_QUANTIZE;
  static const std::vector<std::vector<uint32_t>> all = {
      {}, {B}, {R}, {B, R}, {U}, {U, Q}, {B, U, Q}, {Q}, {B, Q}, {S, B, R, Q}, {S}, {S, U, R, Q}, {R, Q}};
  return all;
}

// ------------------------------------------------------------------------------------------------------------ ops

template <class Args>
struct State {
  Args a{};
  List list;
  const infeng_args& finish(int64_t rows) {
    a.common.struct_size = sizeof a;
    a.common.rows = rows;
    a.common.epilogue_count = uint32_t(list.kinds.size());
    a.common.epilogues = list.build();
    return a.common;
  }
};

struct LinearState : State<infeng_linear_args> {
  std::shared_ptr<PackedWeight> weight;
  int64_t rows = 0;
  Activation in;
  Bytes x, out;
  bool has_out = true;
  const infeng_args& args() {
    a.in = in.view();
    if (x.size()) a.in.x = matrix(x, INFENG_F32, rows, weight->view.k, weight->view.k);
    a.weight = weight->view;
    if (has_out) a.out = matrix(out, INFENG_F32, rows, list.width(), list.width());
    return finish(rows);
  }
  bool same(const LinearState& o) const { return out == o.out && list.act == o.list.act; }
  bool intact() const { return out.intact() && list.act.intact(); }
};

void check_linear(Checker& c) {
  for (const uint32_t format : {INFENG_WEIGHT_F32, INFENG_WEIGHT_BF16, INFENG_WEIGHT_INT8_ROW, INFENG_WEIGHT_INT4_G64,
                                INFENG_WEIGHT_INT4_G32}) {
    const bool integer = format >= INFENG_WEIGHT_INT8_ROW;
    for (const int64_t k : {8, 64, 172, 576, 896, 1216})
      for (const int64_t n : {16, 40, 172, 256, 344})
        for (const int64_t rows : {1, 2, 3, 4, 5, 6, 7, 11, 12, 13, 31, 129, 300, 1000}) {
          if (rows > 31 && n * k > 172 * 576) continue;
          if (rows == 1000 && n * k > 172 * 172) continue;
          for (size_t i = 0; i < 2; ++i) {
            LinearState s;
            const auto& kinds = lists()[size_t(pick(0, int64_t(lists().size()) - 1))];
            int64_t outputs = up(n, 16);
            s.list = List(kinds, rows, outputs);
            if (s.list.width() != outputs) outputs = up(n, 32), s.list = List(kinds, rows, outputs);
            infeng_problem p = problem_of(c.kernel, rows);
            p.weight_format = format;
            p.act_format = integer ? INFENG_ACT_INT8_G64 : INFENG_ACT_F32;
            p.n = outputs;
            p.k = k;
            p.epilogues = s.list.mask();
            if (!c.kernel.accepts(&p)) continue;
            s.rows = rows;
            s.weight = std::make_shared<PackedWeight>(format, outputs, k);
            if (integer) {
              s.in = Activation(rows, k);
              s.in.randomize();
            } else {
              s.x = floats(rows * k);
            }
            s.has_out = !(p.epilogues & INFENG_EPILOGUE_BIT(INFENG_EPILOGUE_QUANTIZE)) || chance(0.5);
            s.out = Bytes(s.has_out ? rows * s.list.width() * 4 : 0, 0x33);
            c.compare(p, s,
                      text("format %ld n %ld k %ld rows %ld epilogues %ld", format, outputs, k, rows, p.epilogues));
          }
        }
  }
}

struct EpilogueState : State<infeng_epilogue_args> {
  int64_t rows = 0, n = 0;
  Bytes in, out;
  bool in_place = false;
  const infeng_args& args() {
    a.in = matrix(in, INFENG_F32, rows, n, n);
    a.out = in_place ? a.in : matrix(out, INFENG_F32, rows, list.width(), list.width());
    if (in_place) a.out.shape[1] = list.width();
    return finish(rows);
  }
  bool same(const EpilogueState& o) const { return in == o.in && out == o.out && list.act == o.list.act; }
  bool intact() const { return in.intact() && out.intact() && list.act.intact(); }
};

void check_epilogue(Checker& c) {
  for (const int64_t n : {8, 64, 172, 352, 576, 896})
    for (const int64_t rows : {1, 3, 70})
      for (const auto& kinds : lists())
        for (const bool in_place : {false, true}) {
          EpilogueState s;
          s.list = List(kinds, rows, n);
          if (s.list.width() != n && n % 32 != 0) continue;
          s.rows = rows;
          s.n = n;
          s.in_place = in_place;
          s.in = floats(rows * n, 3.0f);
          s.out = Bytes(in_place ? 0 : rows * s.list.width() * 4, 0x33);
          infeng_problem p = problem_of(c.kernel, rows);
          p.n = n;
          p.epilogues = s.list.mask();
          c.compare(p, s, text("n %ld rows %ld epilogues %ld in place %ld", n, rows, p.epilogues, in_place));
        }
}

struct RmsnormState : State<infeng_rmsnorm_args> {
  int64_t rows = 0, k = 0;
  Bytes x, weight, out;
  std::vector<int32_t> index;
  const infeng_args& args() {
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

void check_rmsnorm(Checker& c) {
  for (const int64_t k : {8, 64, 172, 576, 896, 2048})
    for (const int64_t rows : {1, 4, 65})
      for (const int variant : {0, 1, 2, 3}) {
        RmsnormState s;
        s.list = List(variant & 1 ? std::vector<uint32_t>{INFENG_EPILOGUE_QUANTIZE} : std::vector<uint32_t>{}, rows, k);
        s.rows = rows;
        s.k = k;
        s.x = floats((rows + 3) * k, variant == 1 ? 1e-30f : 1.0f);
        s.weight = floats(k);
        s.out = Bytes(variant == 3 ? 0 : rows * k * 4, 0x33);
        if (variant & 2)
          for (int64_t i = 0; i < rows; ++i) s.index.push_back(int32_t(pick(0, rows + 2)));
        infeng_problem p = problem_of(c.kernel, rows);
        p.k = k;
        p.epilogues = s.list.mask();
        c.compare(p, s, text("k %ld rows %ld variant %ld", k, rows, variant));
      }
}

struct EmbedState : State<infeng_embed_args> {
  std::shared_ptr<PackedWeight> weight;
  std::vector<int32_t> ids;
  Bytes out;
  const infeng_args& args() {
    a.ids = ids.data();
    a.weight = weight->view;
    a.out = matrix(out, INFENG_F32, int64_t(ids.size()), weight->view.k, weight->view.k);
    return finish(int64_t(ids.size()));
  }
  bool same(const EmbedState& o) const { return out == o.out; }
  bool intact() const { return out.intact(); }
};

void check_embed(Checker& c) {
  for (const uint32_t format :
       {INFENG_WEIGHT_F32, INFENG_WEIGHT_BF16, INFENG_WEIGHT_INT8_ROW, INFENG_WEIGHT_INT4_G64, INFENG_WEIGHT_INT4_G32})
    for (const int64_t k : {8, 64, 172, 576, 896}) {
      EmbedState s;
      s.weight = std::make_shared<PackedWeight>(format, 50, k);
      for (int32_t id = 0; id < 50; ++id) s.ids.push_back(id);
      s.out = Bytes(50 * k * 4, 0x33);
      infeng_problem p = problem_of(c.kernel, 50);
      p.weight_format = format;
      p.k = k;
      p.n = 64;
      c.compare(p, s, text("format %ld k %ld", format, k));
    }
}

struct RopeState : State<infeng_rope_args> {
  int64_t rows = 0, heads = 0, kv_heads = 0, dim = 0, rot = 0;
  Bytes x, cos, sin;
  std::vector<int32_t> positions;
  const infeng_args& args() {
    const int64_t stride = (heads + kv_heads) * dim + 3;
    a.q = heads_view(x, rows, heads, dim, stride);
    a.k = heads_view(x, rows, kv_heads, dim, stride, heads * dim);
    a.positions = positions.data();
    a.cos = matrix(cos, INFENG_F32, 100, rot / 2, rot / 2);
    a.sin = matrix(sin, INFENG_F32, 100, rot / 2, rot / 2);
    return finish(rows);
  }
  bool same(const RopeState& o) const { return x == o.x; }
  bool intact() const { return x.intact(); }
};

void check_rope(Checker& c) {
  for (const int64_t dim : {8, 64, 80, 96, 128, 256})
    for (const int64_t rot : {dim, dim / 2, int64_t(6)})
      for (const int64_t rows : {1, 5}) {
        RopeState s;
        s.rows = rows, s.heads = 3, s.kv_heads = 1, s.dim = dim, s.rot = rot;
        s.x = floats(rows * (4 * dim + 3));
        s.cos = floats(100 * rot / 2);
        s.sin = floats(100 * rot / 2);
        for (int64_t i = 0; i < rows; ++i) s.positions.push_back(int32_t(pick(0, 99)));
        infeng_problem p = problem_of(c.kernel, rows);
        p.heads = 3, p.kv_heads = 1, p.head_dim = int32_t(dim);
        c.compare(p, s, text("dim %ld rot %ld rows %ld", dim, rot, rows));
      }
}

// ---------------------------------------------------------------------------------------------------------- cache

struct Cache {
  uint32_t format = 0;
  int64_t blocks = 0, heads = 0, dim = 0;
  Bytes data;
  infeng_kv_cache view() const {
    infeng_kv_cache c{};
    const int64_t k = format == INFENG_KV_F32 ? dim * 64 : up(dim, 4) / 4 * 64,
                  v = format == INFENG_KV_F32 ? dim * 64 : up(dim * 16, 64);
    c.struct_size = sizeof c;
    c.format = format;
    c.base = data.as<void>();
    c.v_offset = k;
    c.k_scale_offset = k + v;
    c.v_scale_offset = k + v + 64;
    c.head_stride = k + v + (format == INFENG_KV_F32 ? 0 : 128);
    c.block_stride = c.head_stride * heads;
    c.block_tokens = 16;
    c.block_count = int32_t(blocks);
    c.kv_heads = int32_t(heads);
    c.head_dim = int32_t(dim);
    return c;
  }
  void allocate() { data = Bytes(view().block_stride * blocks); }
  void randomize() {
    allocate();
    const infeng_kv_cache c = view();
    for (int64_t i = 0; i < blocks * heads; ++i) {
      uint8_t* slab = data.as<uint8_t>(i * c.head_stride);
      if (format == INFENG_KV_F32) {
        for (int64_t j = 0; j < dim * 32; ++j) reinterpret_cast<float*>(slab)[j] = normal();
        continue;
      }
      for (int64_t j = 0; j < c.v_offset; ++j) slab[j] = uint8_t(pick(1, 255));
      for (int64_t j = c.v_offset; j < c.k_scale_offset; ++j) slab[j] = uint8_t(int8_t(pick(-127, 127)));
      for (int j = 0; j < 32; ++j) reinterpret_cast<float*>(slab + c.k_scale_offset)[j] = std::fabs(normal()) * 0.02f;
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

const std::vector<std::vector<std::pair<int64_t, int64_t>>> kShapes = {{{1, 0}},   {{1, 15}},
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
  const infeng_args& args() {
    const int64_t stride = 2 * cache.heads * cache.dim;
    a.k = heads_view(x, segments.rows, cache.heads, cache.dim, stride);
    a.v = heads_view(x, segments.rows, cache.heads, cache.dim, stride, stride / 2);
    a.cache = cache.view();
    a.segments = segments.build();
    a.segment_count = int32_t(segments.list.size());
    a.segment_stride = sizeof(infeng_kv_segment);
    return finish(segments.rows);
  }
  bool same(const AppendState& o) const { return cache.data == o.cache.data; }
  bool intact() const { return cache.data.intact(); }
};

void check_kv_append(Checker& c) {
  for (const uint32_t format : {INFENG_KV_F32, INFENG_KV_INT8})
    for (const int64_t dim : {8, 64, 80, 96, 128, 256})
      for (const auto& shape : kShapes) {
        AppendState s;
        s.segments = Segments(shape);
        s.cache = {format, s.segments.blocks, pick(1, 3), dim, Bytes()};
        s.cache.allocate();
        s.x = floats(s.segments.rows * 2 * s.cache.heads * dim);
        for (int64_t i = 0; i < dim; ++i)
          if (chance(0.2)) s.x.as<float>()[i] = 0;
        infeng_problem p = problem_of(c.kernel, s.segments.rows);
        p.kv_format = format, p.heads = p.kv_heads = int32_t(s.cache.heads), p.head_dim = int32_t(dim);
        p.context = s.segments.longest;
        c.compare(p, s, text("format %ld dim %ld rows %ld", format, dim, s.segments.rows));
      }
}

struct AttentionState : State<infeng_attention_args> {
  Segments segments;
  std::shared_ptr<Cache> cache;
  int64_t heads = 0;
  Bytes q, out;
  const infeng_args& args() {
    const int64_t dim = cache->dim;
    a.q = heads_view(q, segments.rows, heads, dim, heads * dim);
    if (out.size()) a.out = matrix(out, INFENG_F32, segments.rows, heads * dim, heads * dim);
    a.cache = cache->view();
    a.segments = segments.build();
    a.segment_count = int32_t(segments.list.size());
    a.segment_stride = sizeof(infeng_kv_segment);
    a.scale = 1.0f / std::sqrt(float(dim));
    return finish(segments.rows);
  }
  bool same(const AttentionState& o) const { return out == o.out && list.act == o.list.act; }
  bool intact() const { return out.intact() && list.act.intact(); }
};

void check_attention(Checker& c) {
  for (const uint32_t format : {INFENG_KV_F32, INFENG_KV_INT8})
    for (const int64_t dim : {8, 64, 80, 96, 128, 256})
      for (const auto& shape : kShapes)
        for (const int64_t shared : {1, 2, 3, 4, 7, 8}) {
          const int64_t rows = Segments(shape).rows;
          if (rows > 20 && (dim > 96 || shared % 2 == 0) && !chance(0.1)) continue;
          if (rows <= 20 && !chance(0.5)) continue;
          AttentionState s;
          s.segments = Segments(shape);
          s.cache = std::make_shared<Cache>(Cache{format, s.segments.blocks, pick(1, 2), dim, Bytes()});
          s.heads = s.cache->heads * shared;
          s.a.window = chance(0.4) ? int32_t(pick(1, 400)) : 0;
          infeng_problem p = problem_of(c.kernel, rows);
          p.kv_format = format, p.heads = int32_t(s.heads), p.kv_heads = int32_t(s.cache->heads),
          p.head_dim = int32_t(dim);
          p.context = s.segments.longest;
          const bool quantize = dim % 64 == 0 && chance(0.5);
          s.list = List(quantize ? std::vector<uint32_t>{INFENG_EPILOGUE_QUANTIZE} : std::vector<uint32_t>{}, rows,
                        s.heads * dim);
          p.epilogues = s.list.mask();
          if (!c.kernel.accepts(&p)) continue;
          s.cache->randomize();
          s.q = floats(rows * s.heads * dim, 2.0f);
          s.out = Bytes(quantize && chance(0.5) ? 0 : rows * s.heads * dim * 4, 0x33);
          c.compare(p, s,
                    text("format %ld dim %ld rows %ld gqa %ld window %ld kv heads %ld", format, dim, rows, shared,
                         s.a.window, s.cache->heads));
        }
}

void check(Checker& c) {
  switch (c.kernel.op) {
    case INFENG_OP_EMBED:
      return check_embed(c);
    case INFENG_OP_RMSNORM:
      return check_rmsnorm(c);
    case INFENG_OP_LINEAR:
      return check_linear(c);
    case INFENG_OP_EPILOGUE:
      return check_epilogue(c);
    case INFENG_OP_ROPE:
      return check_rope(c);
    case INFENG_OP_KV_APPEND:
      return check_kv_append(c);
    case INFENG_OP_ATTENTION:
      return check_attention(c);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) Library::die("usage: %s REFERENCE.so CANDIDATE.so [features] [kernel prefix]", argv[0]);
  const std::string features = argc > 3 ? argv[3] : "", prefix = argc > 4 ? argv[4] : "";
  const Library reference(argv[1], ""), candidate(argv[2], features.c_str());
  int failures = 0;
  for (int32_t i = 0; i < candidate.desc.kernel_count; ++i) {
    const infeng_kernel& kernel = *candidate.desc.kernels[i];
    if (std::string(kernel.name).compare(0, prefix.size(), prefix) != 0) continue;
    if (kernel.features[0] && features.find(kernel.features) == std::string::npos) {
      printf("%-28s skipped: needs %s\n", kernel.name, kernel.features);
      continue;
    }
    Checker checker{reference, kernel};
    check(checker);
    printf("%-28s %d of %d cases equal\n", kernel.name, checker.cases - checker.failures, checker.cases);
    failures += checker.failures || !checker.cases;
  }
  return failures != 0;
}
