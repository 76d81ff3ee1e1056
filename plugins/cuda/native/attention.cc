// ATTENTION.
#include "../kernels/attention.h"

#include <algorithm>

#include "flatten.h"
#include "kv.h"

namespace infeng_cuda {
namespace {

constexpr int64_t kMostShared = 92 << 10;  // beside the static memory of a block
constexpr int64_t kMostChunks = 48 << 10;  // bytes of V
constexpr int64_t kMostParts = 64 << 20;   // bytes of results of splits at a time

struct Format {
  uint32_t number;
  Kind k, v;
  bool rotated;
  Entry few, many;  // for a row, and for several rows of a segment at a time
};

bool is_lines(Kind kind) { return kind == kInt8Lines || kind == kInt4Lines; }
int32_t thread_queries(bool many) { return many ? kThreadQueries<true> : kThreadQueries<false>; }
int32_t query_tiles(bool many) { return many ? kQueryTiles<true> : kQueryTiles<false>; }

int32_t round_up(int32_t value, int32_t unit) { return (value + unit - 1) / unit * unit; }

constexpr int32_t block_bytes(Kind kind, int32_t dim, bool is_v) {
  const int32_t padded = (dim + 15) / 16 * 16;
  switch (kind) {
    case kFloat32:
      return 4 * kBlockTokens * dim;
    case kFloat16:
      return 2 * kBlockTokens * dim;
    case kInt8:
      return kBlockTokens * (is_v ? dim : (dim + 3) / 4 * 4);
    case kInt4:
      return kBlockTokens / 2 * (is_v ? padded : dim);
    case kInt8Lines:
      return kBlockTokens * padded;
    case kInt4Lines:
      return kBlockTokens / 2 * padded;
    default:
      return kBlockTokens * dim;
  }
}

// Lays out shared memory for blocks of `queries` at most; returns its bytes.
int64_t lay_out(Attention& p, const Format& f, bool many, int32_t queries) {
  const int32_t tiled = round_up(queries, 16), padded = round_up(queries, thread_queries(many));
  const bool lines = is_lines(f.v);
  p.query_stride = round_up(std::max(p.cache.dim, p.cache.v_dim), 4) + 4;
  p.scores = queries * p.query_stride;
  p.rounded = p.scores + padded * kScoreStride;
  p.rounded_stride = round_up(p.cache.dim, 32) / 4 + 4;
  p.values = p.rounded + (f.k == kInt8 || f.k == kInt4 ? tiled * p.rounded_stride : 0);
  p.chunk_tokens = 128;
  const auto chunks = [&] { return int64_t{2} * p.chunk_tokens / kBlockTokens * p.block_v_bytes; };
  while (p.chunk_tokens > kBlockTokens && chunks() > kMostChunks) p.chunk_tokens /= 2;
  const int64_t bytes = int64_t{4} * p.values + (lines ? tiled * kShareStride : chunks());
  return std::max(bytes, int64_t{4} * padded * p.query_stride);  // floats of queries are read up to there
}

// Threads of a block: one for each element of V and each few queries, where V is added by element.
int32_t threads_for(const Attention& p, const Format& f, bool many, int32_t queries) {
  if (is_lines(f.v)) return 256;
  return std::max(256, round_up(round_up(queries, thread_queries(many)) / thread_queries(many) * p.cache.v_dim, 32));
}

int32_t most_queries(Attention& p, const Format& f, bool many) {
  int32_t queries = 16 * query_tiles(many);
  while (queries > 1 &&
         (threads_for(p, f, many, queries) > kMostAttentionThreads || lay_out(p, f, many, queries) > kMostShared)) {
    queries /= 2;
  }
  return queries;
}

int32_t begin_of(const Attention& p, int32_t position) {
  return p.window > 0 && position >= p.window ? position - p.window + 1 : 0;
}

// The most splits of a group of rows.
int32_t most_splits(const Attention& p, const Span& span) {
  int32_t most = 1;
  for (int32_t row = 0; row < span.rows; row += p.group_rows) {
    const int32_t last = std::min(row + p.group_rows, span.rows) - 1;
    const int32_t end = p.is_full != 0 ? span.length : span.pos0 + last + 1;
    most = std::max(most, (end - 1) / kSplit + 1 - begin_of(p, span.pos0 + row) / kSplit);
  }
  return most;
}

// The launches of a call, for segments of one row or for longer ones.
class Launches {
 public:
  Launches(Attention& p, Format& format, bool many, int32_t rows, infeng_worker* worker)
      : p_(p), format_(format), many_(many), worker_(worker) {
    const int32_t queries = most_queries(p, format, many);
    p.block_heads = std::min(p.shared_heads, queries);
    p.group_rows = std::clamp(queries / p.shared_heads, 1, rows);
    queries_ = p.group_rows * p.block_heads;
    shared_ = lay_out(p, format, many, queries_);
  }

  // Adds a segment, in pieces whose results fit in scratch memory.
  infeng_status add(Span span) {
    const int32_t rows = span.rows, row = span.row, pos0 = span.pos0;
    const int64_t row_bytes = int64_t{4} * most_splits(p_, span) * p_.heads * p_.part_stride;
    const auto groups = static_cast<int32_t>(std::max(kMostParts / row_bytes / p_.group_rows, int64_t{1}));
    for (int32_t begin = 0; begin < rows; begin += groups * p_.group_rows) {
      span.row = row + begin;
      span.rows = std::min(groups * p_.group_rows, rows - begin);
      span.pos0 = pos0 + begin;
      if (const infeng_status status = add_piece(span)) return status;
    }
    return INFENG_OK;
  }

  infeng_status flush() {
    if (p_.span_count == 0) return INFENG_OK;
    if (parts_ > 0) {
      p_.parts = static_cast<float*>(scratch(4 * parts_ * p_.part_stride, worker_));
      if (p_.parts == nullptr) return INFENG_OUT_OF_RANGE;
    }
    const int64_t portions = ceil_div(p_.shared_heads, p_.block_heads);
    const auto threads = static_cast<unsigned>(threads_for(p_, format_, many_, queries_));
    Entry& entry = many_ ? format_.many : format_.few;
    infeng_status status = launch(entry, {items_, p_.cache.kv_heads * portions}, threads, p_, worker_, shared_);
    if (status == INFENG_OK && parts_ > 0) {
      const auto elements = static_cast<unsigned>(round_up(p_.cache.v_dim, 32));
      static Entry combine{"attention_combine"};
      status = launch(combine, {rows_, p_.heads}, elements, p_, worker_);
    }
    p_.span_count = items_ = rows_ = 0;
    parts_ = 0;
    return status;
  }

 private:
  infeng_status add_piece(Span span) {
    span.splits = most_splits(p_, span);
    const int64_t parts = span.splits == 1 ? 0 : int64_t{span.rows} * p_.heads * span.splits;
    if (p_.span_count == kMostSpans || (parts_ + parts) * p_.part_stride * 4 > kMostParts) {
      if (const infeng_status status = flush()) return status;
    }
    span.first_row = rows_;
    span.first_item = items_;
    span.parts = parts_;
    rows_ += span.rows;
    items_ += static_cast<int32_t>(ceil_div(span.rows, p_.group_rows)) * span.splits;
    parts_ += parts;
    p_.spans[p_.span_count++] = span;
    return INFENG_OK;
  }

  Attention& p_;
  Format& format_;
  const bool many_;
  infeng_worker* const worker_;
  int32_t queries_;
  int64_t shared_;
  int32_t rows_ = 0, items_ = 0;
  int64_t parts_ = 0;
};

Attention flatten(const infeng_attention_args& args, const Format& format) {
  Attention p;
  p.cache = flatten_cache(*args.cache);
  p.q = static_cast<const float*>(args.q.data);
  p.out = static_cast<float*>(args.out.data);
  p.sinks = args.sinks;
  p.slopes = args.slopes;
  p.q_row = args.q.strides[0];
  p.q_head = args.q.strides[1];
  p.out_row = args.out.strides[0];
  p.part_stride = round_up(p.cache.v_dim + 2, 4);
  p.heads = static_cast<int32_t>(args.q.shape[1]);
  p.shared_heads = p.heads / p.cache.kv_heads;
  p.window = args.window;
  p.is_full = args.mask == INFENG_MASK_FULL;
  p.rotated = format.rotated;
  p.scale = args.scale;
  p.softcap = args.softcap;
  p.block_k_bytes = block_bytes(format.k, p.cache.dim, false);
  p.block_v_bytes = block_bytes(format.v, p.cache.v_dim, true);
  return p;
}

template <Format& format>
infeng_status run(const infeng_args* common, int32_t, int64_t, int64_t, infeng_worker* worker) {
  const auto& args = *reinterpret_cast<const infeng_attention_args*>(common);
  if (!cache_fits(*args.cache, format.number, format.rotated))
    return fail(worker, INFENG_INVALID_ARGUMENT, kOtherCache);
  if (args.mask > INFENG_MASK_FULL) return fail(worker, INFENG_UNIMPLEMENTED, "attention has an unknown mask");
  if (common->epilogue_count != 0) return fail(worker, INFENG_UNIMPLEMENTED, "a step that no kernel fuses");
  Attention p = flatten(args, format);
  const bool always_many = p.shared_heads > most_queries(p, format, false);
  for (const bool many : {false, true}) {
    const auto fits = [&](const Span& span) { return span.rows > 0 && (always_many || span.rows > 1) == many; };
    int32_t rows = 0;  // of the longest segment
    for (int32_t i = 0; i < args.segment_count; ++i) {
      const Span span = span_of(args, i);
      if (fits(span)) rows = std::max(rows, span.rows);
    }
    if (rows == 0) continue;
    Launches launches(p, format, many, rows, worker);
    for (int32_t i = 0; i < args.segment_count; ++i) {
      const Span span = span_of(args, i);
      if (!fits(span)) continue;
      if (const infeng_status status = launches.add(span)) return status;
    }
    if (const infeng_status status = launches.flush()) return status;
  }
  return INFENG_OK;
}

template <Format& format>
int32_t accepts(const infeng_problem* p) {
  return p->op == INFENG_OP_ATTENTION && p->kv_format == format.number && p->epilogue_count == 0 &&
         head_fits(p->head_dim, format.rotated) && head_fits(p->v_head_dim, format.rotated) && p->kv_heads > 0;
}

constexpr uint64_t kHandled = INFENG_NEED_BIT(INFENG_NEED_WINDOW) | INFENG_NEED_BIT(INFENG_NEED_SOFTCAP) |
                              INFENG_NEED_BIT(INFENG_NEED_SINKS) | INFENG_NEED_BIT(INFENG_NEED_ALIBI) |
                              INFENG_NEED_BIT(INFENG_NEED_MASK) | INFENG_NEED_BIT(INFENG_NEED_HEAD_SIZES);

}  // namespace

#define INFENG_KERNEL(name, number, k, v, rotated)                                                               \
  static Format format_##name{number, k, v, rotated, {"attention_" #name "_few"}, {"attention_" #name "_many"}}; \
  extern "C" const infeng_kernel cuda_attention_##name =                                                         \
      whole_kernel(INFENG_OP_ATTENTION, "attention_" #name, 0, kHandled, accepts<format_##name>, run<format_##name>);
INFENG_CACHE_FORMATS(INFENG_KERNEL)

}  // namespace infeng_cuda
