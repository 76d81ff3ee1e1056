#include "profile.h"

#include <algorithm>

#include "program.h"

namespace infeng {
namespace {

struct Work {
  int64_t macs = 0;
  int64_t bytes = 0;
};

// Tokens that the rows of a step see, summed over rows; and tokens of the cache that are read, once per segment.
Work attention_work(const infeng_attention_args& args) {
  const infeng_kv_cache& cache = args.cache;
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
  return {2 * heads * cache.head_dim * seen, read * cache.kv_heads * cache.head_stride / cache.block_tokens};
}

Work work_of(const Op& op) {
  const int64_t rows = op.args.common.rows;
  switch (op.problem.op) {
    case INFENG_OP_LINEAR: {
      const infeng_weight& weight = op.args.linear.weight;
      return {rows * weight.n * weight.k, weight.panels * weight.panel_bytes};
    }
    case INFENG_OP_ATTENTION:
      return attention_work(op.args.attention);
    case INFENG_OP_KV_APPEND: {
      const infeng_kv_cache& cache = op.args.kv_append.cache;
      return {0, rows * cache.kv_heads * cache.head_stride / cache.block_tokens};
    }
    default:
      return {};
  }
}

}  // namespace

Profile::Profile(const std::vector<int>& kernels, int threads, int64_t events) {
  int64_t slots = 0;
  for (const int count : kernels) {
    first_slot_.push_back(slots);
    slots += int64_t{count} * kPhases;
  }
  phases_.resize(static_cast<size_t>(slots));
  seats_.resize(static_cast<size_t>(threads));
  for (Seat& seat : seats_) {
    seat.totals.resize(static_cast<size_t>(slots));
    seat.ring.resize(static_cast<size_t>(events));
  }
}

int64_t Profile::slot(int op, int kernel, int phase) const {
  return first_slot_[static_cast<size_t>(op)] + kernel * kPhases + std::min(phase, kPhases - 1);
}

void Profile::begin_step() { step_begin_ns_ = mark_ns_ = now(); }

void Profile::end_step(int64_t step_rows) {
  const int64_t end = now();
  tail_ns += end - mark_ns_;
  step_ns += end - step_begin_ns_;
  rows += step_rows;
  ++steps;
}

void Profile::open(const Op& op, int op_index, int phase, int64_t tiles) {
  slot_ = slot(op_index, op.kernel_index, phase);
  PhaseTotals& totals = phases_[static_cast<size_t>(slot_)];
  const int64_t op_rows = op.args.common.rows;
  ++totals.calls;
  totals.rows += op_rows;
  totals.tiles += tiles;
  if (phase == 0) {
    const Work work = work_of(op);
    totals.macs += work.macs;
    totals.bytes += work.bytes;
  }
  open_ = {0, 0, static_cast<int32_t>(steps), op_index, op.kernel_index, phase, static_cast<int32_t>(op_rows), 0};
  is_open_ = true;
  opened_ns_ = now();
  totals.gap_ns += opened_ns_ - mark_ns_;
}

void Profile::stop(int worker, int64_t tiles) {
  Seat& seat = seats_[static_cast<size_t>(worker)];
  const int64_t end_ns = now();
  WorkerTotals& totals = seat.totals[static_cast<size_t>(slot_)];
  totals.busy_ns += end_ns - seat.begin_ns;
  totals.late_ns += seat.begin_ns - opened_ns_;
  totals.tiles += tiles;
  if (seat.ring.empty()) return;
  Event& event = seat.ring[static_cast<size_t>(seat.count++) % seat.ring.size()];
  event = open_;
  event.begin_ns = seat.begin_ns;
  event.end_ns = end_ns;
  event.tiles = static_cast<int32_t>(tiles);
}

void Profile::close() {
  if (!is_open_) return;
  is_open_ = false;
  mark_ns_ = now();
  phases_[static_cast<size_t>(slot_)].wall_ns += mark_ns_ - opened_ns_;
}

std::vector<Event> Profile::events(int worker) const {
  const Seat& seat = seats_[static_cast<size_t>(worker)];
  const auto size = static_cast<int64_t>(seat.ring.size());
  std::vector<Event> out;
  for (int64_t i = std::max<int64_t>(0, seat.count - size); i < seat.count; ++i) {
    out.push_back(seat.ring[static_cast<size_t>(i % size)]);
  }
  return out;
}

}  // namespace infeng
