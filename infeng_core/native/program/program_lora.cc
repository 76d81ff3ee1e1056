// The adapter part of Program: SHRINK, LORA steps, and ops that run in slices of rows with a replaced weight.
#include <infeng/extension/error.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "program/program.h"
#include "program/tensors.h"
#include "vocabulary/names.h"

namespace infeng {
namespace {

uint32_t need_of(uint32_t dtype) {
  if (dtype == INFENG_F32) return INFENG_NEED_LORA_F32;
  if (dtype == INFENG_I8T4) return INFENG_NEED_LORA_I8T4;
  return dtype == INFENG_BF16 ? INFENG_NEED_LORA_BF16 : INFENG_NEED_LORA_I8;
}

}  // namespace

void Program::open_adapters(uint32_t dtype, int64_t columns, int64_t ranges) {
  if (finished_ || !ops_.empty()) fail("finished", "open_adapters() comes before the ops");
  if (lora_.is_open()) fail(kBad, "open_adapters() was called before");
  lora_.open(dtype, columns, ranges);
  u_ = buffer(columns, false);
  if (limits_.samples > 0) {
    Value value = values_[static_cast<size_t>(u_)];
    value.samples = true;
    value.rows = limits_.samples;
    sample_u_ = static_cast<int>(values_.size());
    values_.push_back(value);
  }
  slice_index_ = memory_.take_array<int32_t>(limits_.rows);
}

// The buffer u that SHRINK writes and the op's LORA step reads.
const Value& Program::u_of(const Op& op) {
  if (op.routing == nullptr) return value(op.samples ? sample_u_ : u_);
  const auto [found, is_new] = copies_u_.try_emplace(op.routing->top_k, -1);
  if (is_new) found->second = buffer(lora_.columns(), false, op.routing->top_k);
  return value(found->second);
}

int Program::shrink(Bindings kernels, const std::string& name, int x, int64_t k, int64_t panels, int routing) {
  if (!lora_.is_open()) fail(kBad, "shrink: the program was made without adapters");
  const bool samples = value(x).samples;
  auto draft_op = draft(INFENG_OP_SHRINK, std::move(kernels), samples);
  Op& op = *draft_op;
  if (routing >= 0) op.routing = &routing_of(routing);
  infeng_shrink_args& args = op.args.shrink;
  op.problem.weight_format = adapter_format(lora_.dtype());
  op.problem.act_format = activation_of(op.problem.weight_format);
  if (lora_.dtype() == INFENG_I8T4) op.need(INFENG_NEED_LORA_I8T4);  // other storages show in the format
  op.problem.n = lora_.columns();
  op.problem.k = k;
  const bool quantized = op.problem.act_format == INFENG_ACT_INT8_G64;
  const Value& in = operand(x, "shrink", quantized, k, samples, op.copies_of_rows());
  op.problem.act_format = activation_of(op.problem.weight_format, in.group);
  op.in = describe(in);
  if (!in.quantized) op.in.x = matrix(in, k);
  track(op, op.in);
  args.in = &op.in;
  args.u = matrix(u_of(op), lora_.columns());
  track(op, args.u);
  args.segment_stride = sizeof(infeng_lora_segment);
  op.needs_some = &args.segment_count;
  const int slot = lora_.add_slot({name, false, samples, panels, k, &op, op.routing});
  if (op.routing != nullptr) {
    op.lora_slot = slot;
    expert_calls_.reserve(op.routing->experts, limits_.rows * op.routing->top_k);
    if (route_for_adapters_ != nullptr) route_for_adapters_->needs_some = &args.segment_count;
    route_for_adapters_ = nullptr;
  }
  ops_.push_back(std::move(draft_op));
  return slot;
}

int Program::embedding_slot(int64_t vocabulary, int64_t panels) {
  if (!lora_.is_open()) fail(kBad, "embedding_slot: the program was made without adapters");
  const auto is_shrink = [](const auto& op) { return op->problem.op == INFENG_OP_SHRINK; };
  if (std::any_of(ops_.begin(), ops_.end(), is_shrink)) {
    fail(kBad, "embedding_slot: comes before any shrink, which writes to the same u");
  }
  return lora_.add_slot({"embed", true, false, panels, vocabulary});
}

void Program::add_lora(Op& op, int slot, int64_t columns) {
  if (!lora_.has_slot(slot)) fail(kBad, "lora: there is no slot ", slot);
  const LoraSlot& own = lora_.slot(slot);
  if (op.steps.size() != 1) fail(kBad, "lora: comes first in the list");
  if (own.expand != nullptr) fail(kBad, "lora: slot ", own.name, " has its step already");
  if (own.routing != op.routing) fail(kBad, "lora: slot ", own.name, " is of another routing");
  if (own.samples != op.samples || own.panels * kPanel != columns) {
    fail(kBad, "lora: slot ", own.name, " has ", own.panels * kPanel, " outputs of ",
         own.samples ? "sampled rows" : "rows of the batch", ", the op has ", columns, " of ",
         op.samples ? "sampled rows" : "rows of the batch");
  }
  infeng_lora_epilogue& step = op.steps.back().lora;
  step.head.struct_size = sizeof step;
  step.u = matrix(u_of(op), lora_.columns());
  step.segment_stride = sizeof(infeng_lora_segment);
  track(op, step.u);
  op.need(need_of(lora_.dtype()));
  lora_.set_expand(slot, op);
}

void Program::use_module(Op& op, const std::string& name) {
  if (!name.empty() && lora_.is_open() && op.branch != Branch::without_adapters) lora_.add_module(name, op);
}

// Sets the op up for its next rows that share a weight; false if none are left or the op is not sliced.
bool Program::next_slice(Op& op) {
  if (op.mixture != nullptr) return op.routing == nullptr && next_share(op);
  if (!op.is_sliced || op.slice_end == op.slices_rows) return false;
  const int64_t begin = op.slice_end;
  int64_t end = op.slices_rows;
  const Replacement* replacement = lora_.replacement(op, begin, &end);
  op.slice_end = end;
  op.set_rows(begin, end - begin);
  op.rows_set = -1;
  const auto index = [&](const int32_t* all) {  // for the host a copy, to be 64-byte aligned wherever the slice begins
    if (device_ != nullptr) return all + begin;
    std::memcpy(slice_index_, all + begin, static_cast<size_t>(end - begin) * sizeof *all);
    return static_cast<const int32_t*>(slice_index_);
  };
  const auto place = static_cast<size_t>(op.kernel_index);
  if (op.index_at != nullptr) *op.index_at = index(op.index);
  if (op.weight_at != nullptr && replacement != nullptr) *op.weight_at = &replacement->weights[place]->abi;
  if (op.vector_at != nullptr) {
    *op.vector_at = replacement != nullptr ? const_cast<void*>(replacement->vector.data) : op.vector;
  }
  if (op.second_at != nullptr) {
    *op.second_at = op.second;
    if (replacement != nullptr) {
      const auto* both = static_cast<const std::byte*>(replacement->vector.data);
      *op.second_at = reinterpret_cast<const float*>(both + op.second_offset);
    }
  }
  if (op.lora_slot >= 0) op.use_segments(lora_.segments(op, begin, end));
  return true;
}

// Undoes the slicing of an earlier step; set_rows() resets the rest.
void Program::join_slices(Op& op) {
  op.is_sliced = false;
  if (op.index_at != nullptr) *op.index_at = op.index;
  if (op.vector_at != nullptr) *op.vector_at = op.vector;
  if (op.second_at != nullptr) *op.second_at = op.second;
  if (op.lora_slot >= 0) op.use_segments(lora_.slot(op.lora_slot).segments);
}

}  // namespace infeng
