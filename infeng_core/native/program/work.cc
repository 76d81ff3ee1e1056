#include "program/work.h"

#include <algorithm>
#include <span>

#include "program/program.h"

namespace infeng {
namespace {

// Multiply-adds count the positions that each row sees; bytes count each cached position once per segment.
Work attention_work(const Op& op) {
  const infeng_attention_args& args = op.args.attention;
  const infeng_kv_cache& cache = *args.cache;
  int64_t seen = 0;
  int64_t read = 0;
  for (int32_t s = 0; s < args.segment_count; ++s) {
    const auto* segment = reinterpret_cast<const infeng_kv_segment*>(reinterpret_cast<const char*>(args.segments) +
                                                                     int64_t{s} * args.segment_stride);
    const int64_t window = args.window > 0 ? args.window : segment->length;
    read += std::min<int64_t>(segment->length, window + segment->row_end - segment->row_begin - 1);
    for (int64_t length = segment->pos0 + 1; length <= segment->length; ++length) seen += std::min(length, window);
  }
  const int64_t heads = args.q.shape[1];
  return {heads * (cache.head_dim + cache.v_head_dim) * seen,
          read * cache.kv_heads * cache.head_stride / cache.block_tokens};
}

// Products with the A of each segment.
Work shrink_work(const Op& op) {
  const infeng_shrink_args& args = op.args.shrink;
  Work work;
  for (const infeng_lora_segment& s : std::span(args.segments, static_cast<size_t>(args.segment_count))) {
    work.macs += int64_t{s.row_end - s.row_begin} * s.rank * op.problem.k;
    work.bytes += stacked_bytes_of(s.dtype, s.rank, op.problem.k);
  }
  return work;
}

// Products with the B of each segment, if the op has a LORA step.
Work lora_work(const Op& op) {
  Work work;
  if (op.lora_slot < 0) return work;
  const infeng_lora_epilogue& step = op.steps[0].lora;
  for (const infeng_lora_segment& s : std::span(step.segments, static_cast<size_t>(step.segment_count))) {
    const int64_t products = int64_t{s.panel_count} * kPanel * s.rank;
    work.macs += (s.row_end - s.row_begin) * products;
    work.bytes += s.panel_count * expand_bytes_of(s.dtype, s.rank);
  }
  return work;
}

Work expert_work(const Op& op) {
  const infeng_weight& weight = op.weight->abi;
  const int64_t panels = weight.panels / op.routing->experts;
  return {op.args.common.rows * panels * kPanel * weight.k, op.routing->used() * panels * weight.panel_bytes};
}

Work linear_work(const Op& op) {
  if (op.routing != nullptr) return expert_work(op);
  const infeng_weight& weight = *op.args.linear.weight;
  const Work lora = lora_work(op);
  return {op.args.common.rows * weight.n * weight.k + lora.macs, weight.panels * weight.panel_bytes + lora.bytes};
}

Work append_work(const Op& op) {
  const infeng_kv_cache& cache = op.cache;
  return {0, op.args.common.rows * cache.kv_heads * cache.head_stride / cache.block_tokens};
}

}  // namespace

Work work_of(const Op& op) {
  switch (op.problem.op) {
    case INFENG_OP_LINEAR:
      return linear_work(op);
    case INFENG_OP_EPILOGUE:
      return lora_work(op);
    case INFENG_OP_KV_APPEND:
      return append_work(op);
    case INFENG_OP_ATTENTION:
      return attention_work(op);
    case INFENG_OP_SHRINK:
      return shrink_work(op);
    default:
      return {};
  }
}

}  // namespace infeng
