#include "program/profile.h"

#include <algorithm>
#include <span>

#include "program/program.h"

namespace infeng {
namespace {

struct Work {
  int64_t macs = 0;
  int64_t bytes = 0;
};

// Tokens that the rows of a step see, summed over rows; and tokens of the cache that are read, once per segment.
Work attention_work(const infeng_attention_args& args) {
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

int64_t bytes_of(uint32_t dtype) { return dtype == INFENG_F32 ? 4 : dtype == INFENG_BF16 ? 2 : 1; }

// The A of each segment.
Work shrink_work(const Op& op) {
  const infeng_shrink_args& args = op.args.shrink;
  const int64_t panel = panel_bytes_of(op.problem.weight_format, op.problem.k);
  Work work;
  for (const infeng_lora_segment& s : std::span(args.segments, static_cast<size_t>(args.segment_count))) {
    work.macs += int64_t{s.row_end - s.row_begin} * s.rank * op.problem.k;
    work.bytes += (s.rank + kPanel - 1) / kPanel * panel;
  }
  return work;
}

// The B of each segment, where the op has adapters.
Work lora_work(const Op& op) {
  Work work;
  if (op.lora_slot < 0) return work;
  const infeng_lora_epilogue& step = op.steps[0].lora;
  for (const infeng_lora_segment& s : std::span(step.segments, static_cast<size_t>(step.segment_count))) {
    const int64_t products = int64_t{s.panel_count} * kPanel * s.rank;
    work.macs += (s.row_end - s.row_begin) * products;
    work.bytes += products * bytes_of(s.dtype);
  }
  return work;
}

Work work_of(const Op& op) {
  const int64_t rows = op.args.common.rows;
  switch (op.problem.op) {
    case INFENG_OP_LINEAR: {
      const infeng_weight& weight = *op.args.linear.weight;
      const Work lora = lora_work(op);
      return {rows * weight.n * weight.k + lora.macs, weight.panels * weight.panel_bytes + lora.bytes};
    }
    case INFENG_OP_SHRINK:
      return shrink_work(op);
    case INFENG_OP_EPILOGUE:
      return lora_work(op);
    case INFENG_OP_ATTENTION:
      return attention_work(op.args.attention);
    case INFENG_OP_KV_APPEND: {
      const infeng_kv_cache& cache = op.cache;
      return {0, rows * cache.kv_heads * cache.head_stride / cache.block_tokens};
    }
    default:
      return {};
  }
}

}  // namespace

Profile::Profile(const std::vector<int>& kernels, const std::vector<int>& groups, int threads, int64_t events) {
  int64_t slots = 0;
  for (size_t op = 0; op < kernels.size(); ++op) {
    const auto group = static_cast<size_t>(groups[op]);
    first_slot_.push_back(group < op ? first_slot_[group] : slots);
    if (group == op) slots += int64_t{kernels[op]} * kPhases;
  }
  seats_.resize(static_cast<size_t>(threads));
  for (Seat& seat : seats_) {
    seat.totals.resize(static_cast<size_t>(slots));
    seat.ring.resize(static_cast<size_t>(events));
  }
}

int64_t Profile::slot(int op, int kernel, int phase) const {
  return first_slot_[static_cast<size_t>(op)] + kernel * kPhases + std::min(phase, kPhases - 1);
}

void Profile::add_step(int64_t step_rows, int64_t begin, int64_t last_phase_end) {
  const int64_t end = ticks();
  tail += end - last_phase_end;
  step += end - begin;
  rows += step_rows;
  ++steps;
}

void Profile::begun(int worker, int64_t slot, const Op& op, int phase, int64_t tiles) {
  PhaseTotals& sum = totals(worker, slot);
  ++sum.calls;
  sum.rows += op.args.common.rows;
  sum.tiles += tiles;
  if (phase > 0) return;
  const Work work = work_of(op);
  sum.macs += work.macs;
  sum.bytes += work.bytes;
}

void Profile::part(int worker, int64_t slot, int64_t late, const Event& event) {
  PhaseTotals& sum = totals(worker, slot);
  sum.busy += event.end - event.begin;
  sum.late += late;
  sum.own_tiles += event.tiles;
  Seat& seat = seats_[static_cast<size_t>(worker)];
  if (seat.ring.empty()) return;
  seat.ring[static_cast<size_t>(seat.next)] = event;
  if (++seat.next == static_cast<int64_t>(seat.ring.size())) {
    seat.next = 0;
    seat.is_full = true;
  }
}

std::vector<Event> Profile::events(int worker) const {
  const Seat& seat = seats_[static_cast<size_t>(worker)];
  const auto next = seat.ring.begin() + seat.next;
  std::vector<Event> out;
  if (seat.is_full) out.assign(next, seat.ring.end());
  out.insert(out.end(), seat.ring.begin(), next);
  return out;
}

}  // namespace infeng
