// Copies a step's arrays into the program's memory and checks every value that kernels rely on.
#include <infeng/extension/error.h>

#include <algorithm>
#include <cstring>

#include "program/program.h"

namespace infeng {
namespace {

int64_t blocks_of(int64_t positions) { return (positions + kBlockTokens - 1) / kBlockTokens; }

void copy(int32_t* to, std::span<const int32_t> from) {
  if (!from.empty()) std::memcpy(to, from.data(), from.size_bytes());
}

}  // namespace

void Program::take(const Batch& batch) {
  rows_ = static_cast<int64_t>(batch.tokens.size());
  samples_ = static_cast<int64_t>(batch.sample_rows.size());
  if (rows_ < 1 || rows_ > limits_.rows) fail(kBad, "tokens: 1 to ", limits_.rows, " rows, not ", rows_);
  if (static_cast<int64_t>(batch.positions.size()) != rows_) {
    fail(kBad, "positions: ", batch.positions.size(), " for ", rows_, " tokens");
  }
  if (samples_ > limits_.samples) fail(kBad, "sample_rows: at most ", limits_.samples, ", not ", samples_);
  // Copied before it is checked: another Python thread may write to the caller's arrays meanwhile.
  copy(tokens_, batch.tokens);
  copy(positions_, batch.positions);
  copy(sample_rows_, batch.sample_rows);
  for (int64_t r = 0; r < rows_; ++r) {
    if (tokens_[r] < 0 || tokens_[r] >= vocabulary_) {
      fail(kBad, "tokens[", r, "] is ", tokens_[r], ", the vocabulary has ", vocabulary_);
    }
    if (positions_[r] < 0 || positions_[r] >= positions_limit_) {
      fail(kBad, "positions[", r, "] is ", positions_[r], ", the context has ", positions_limit_);
    }
  }
  for (int64_t s = 0; s < samples_; ++s) {
    if (sample_rows_[s] < 0 || sample_rows_[s] >= rows_) {
      fail(kBad, "sample_rows[", s, "] is ", sample_rows_[s], ", the batch has ", rows_, " rows");
    }
  }
  take_segments(batch);
  is_demanded_ = batch.on_demand ? 1 : 0;
  if (lora_.is_open()) {
    lora_.take(batch.adapters, rows_, {sample_rows_, static_cast<size_t>(samples_)});
  } else if (!batch.adapters.empty()) {
    fail(kBad, "adapters: the program was made without");
  }
}

void Program::take_segments(const Batch& batch) {
  segment_count_ = static_cast<int64_t>(batch.segments.size()) / 4;
  tables_used_ = 0;
  if (segment_count_ > limits_.segments) {
    fail(kBad, "segments: at most ", limits_.segments, ", not ", segment_count_);
  }
  if (segment_count_ == 0 && !has_cache_) return;
  if (++step_ == 0) {  // the counter wrapped around: clear marks of old steps
    std::fill_n(block_step_, blocks_limit_, 0);
    step_ = 1;
  }
  int64_t covered = 0;
  for (int64_t s = 0; s < segment_count_; ++s) {
    int32_t fields[4];
    copy(fields, batch.segments.subspan(static_cast<size_t>(s) * 4, 4));
    const auto [begin, end, pos0, first] = fields;
    if (begin != covered || end <= begin || end > rows_) {
      fail(kBad, "segments[", s, "]: rows [", begin, ", ", end, ") do not continue at row ", covered, " of ", rows_);
    }
    covered = end;
    for (int32_t r = begin; r < end; ++r) {
      if (positions_[r] != int64_t{pos0} + (r - begin)) {
        fail(kBad, "segments[", s, "]: row ", r, " is at position ", positions_[r], ", the segment says ",
             int64_t{pos0} + (r - begin));
      }
    }
    for (int64_t t = 0; t < limits_.tables; ++t) {
      const int64_t place = t * limits_.segments + s;
      int32_t* const blocks = tables_ + tables_used_;
      segments_[place] = {begin, end, pos0, pos0 + (end - begin), arrays_.for_kernels(blocks)};
      if (!has_cache_) continue;
      tables_used_ += round_up(blocks_of(pos0 + (end - begin)), kPanel);
      take_table(batch, s, t, first + t * blocks_of(limits_.context), blocks);
    }
  }
  if (covered != rows_) fail(kBad, "segments: cover ", covered, " of ", rows_, " rows");
}

// Copies and checks the block table of one segment, from index `first` of block_tables on.
void Program::take_table(const Batch& batch, int64_t segment, int64_t table, int64_t first, int32_t* blocks) {
  const infeng_kv_segment& to = segments_[table * limits_.segments + segment];
  const Sight& sight = sights_[static_cast<size_t>(table)];
  const int64_t needed = blocks_of(to.length);
  const auto available = static_cast<int64_t>(batch.block_tables.size());
  if (first < 0 || first > available || needed > available - first) {
    fail(kBad, "segments[", segment, "]: ", needed, " blocks from index ", first, " on, block_tables has ", available);
  }
  copy(blocks, batch.block_tables.subspan(static_cast<size_t>(first), static_cast<size_t>(needed)));
  // The first position that any row sees.
  const int64_t seen = sight.sees_all ? 0 : std::max<int64_t>(to.pos0 - sight.widest_window + 1, 0);
  for (int64_t b = 0; b < needed; ++b) {
    if (blocks[b] == -1 && sight.widest_window > 0 && (b + 1) * kBlockTokens <= seen) continue;
    if (blocks[b] < 0 || blocks[b] >= blocks_limit_) {
      fail(kBad, "block_tables[", first + b, "] is ", blocks[b], ", the cache has ", blocks_limit_, " blocks");
    }
  }
  // Sequences may share blocks that they read; two that write to one block would race.
  for (int64_t b = to.pos0 / kBlockTokens; b < needed; ++b) {
    if (block_step_[blocks[b]] == step_) {
      fail(kBad, "segments[", segment, "]: writes to block ", blocks[b], ", which this step already writes to");
    }
    block_step_[blocks[b]] = step_;
  }
}

void Op::set_rows(int64_t begin, int64_t count) {
  args.common.rows = count;
  for (const RowView& view : views) {
    view.tensor->shape[0] = count;
    view.tensor->data = view.data + begin * view.row_bytes;
  }
  const Binding& binding = binding_of(count);
  use(binding);
  args.common.instance = binding.instance.get();
  if (weight_at != nullptr) *weight_at = &binding.weight->abi;
  rows_set = begin == 0 ? count : -1;
}

// Copies what the host wrote for this step: the batch, and values that the host sees.
void Program::begin_on_device() {
  const auto* const end = reinterpret_cast<const std::byte*>(tables_ + tables_used_);
  device_->upload(arrays_.device, arrays_.host, end - arrays_.host);
  for (const Shadow& each : shadows_) {
    if (!each.fetched) device_->upload(each.device, each.host, each.nbytes);
  }
}

// Waits for the step, and copies the values that the host sees. Throws the device's error unless the step failed
// anyway.
void Program::end_on_device(bool failed) {
  try {
    device_->wait();
    for (const Shadow& each : shadows_) {
      if (!each.fetched) device_->download(each.host, each.device, each.nbytes);
    }
  } catch (const Error&) {
    if (!failed) throw;
  }
}

// Brings the host's copy of a routing up to date once ROUTE has run: the calls of experts depend on it.
void Program::read_routing(const Routing& routing) {
  device_->download(routing.for_host.begin, routing.for_kernels.begin, (routing.experts + 1) * 4);
  device_->download(routing.for_host.places, routing.for_kernels.places, rows_ * routing.top_k * 4);
}

void Program::patch_lora() {
  const Value& u = value(u_);
  if (device_ == nullptr) return lora_.patch(tokens_, u.x, u.stride);
  if (!lora_.changes_embeddings()) return lora_.patch(tokens_, nullptr, u.stride);
  embedded_u_.assign(static_cast<size_t>(rows_ * u.stride), 0.0f);
  lora_.patch(tokens_, embedded_u_.data(), u.stride);
  device_->upload(u.x, embedded_u_.data(), rows_ * u.stride * static_cast<int64_t>(sizeof(float)));
}

void Program::patch() {
  if (lora_.is_open()) patch_lora();
  for (const auto& each : ops_) {
    Op& op = *each;
    int64_t rows = op.samples ? samples_ : rows_ * op.row_copies;
    if (op.segments_at != nullptr) *op.segments_at = static_cast<int32_t>(segment_count_);
    if (op.needs_some != nullptr && *op.needs_some == 0) rows = 0;
    if (op.branch == (lora_.is_used() ? Branch::without_adapters : Branch::with_adapters)) rows = 0;
    if (op.routing != nullptr) {  // ExpertCalls sets its rows once ROUTE has run
      op.args.common.rows = rows * op.routing->top_k;
      continue;
    }
    if (op.mixture != nullptr) {  // next_share() sets its rows once ROUTE has run
      op.args.common.rows = rows;
      continue;
    }
    if (op.is_sliced) join_slices(op);
    op.is_sliced = rows > 0 && lora_.replaces(op);
    if (op.is_sliced) {
      op.slice_end = 0;
      op.slices_rows = rows;
      op.args.common.rows = rows;
      op.rows_set = -1;
    } else if (op.rows_set != rows) {
      op.set_rows(0, rows);
    }
  }
}

}  // namespace infeng
