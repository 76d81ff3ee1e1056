// Adding the ops of a program: the checks of each, and its kernels' argument struct.
#include <infeng/extension/error.h>

#include <algorithm>
#include <cfloat>
#include <cstring>
#include <utility>

#include "program/ops.h"
#include "program/program.h"
#include "program/tensors.h"
#include "vocabulary/names.h"

namespace infeng {
void Program::embed(Bindings kernels, std::shared_ptr<const Weight> weight, int out, const std::string& module) {
  auto draft_op = draft(INFENG_OP_EMBED, std::move(kernels), false);
  Op& op = *draft_op;
  infeng_embed_args& args = op.args.embed;
  args.ids = op.index = arrays_.for_kernels(tokens_);
  op.index_at = &args.ids;
  args.weight = &weight->abi;
  op.weight_at = &args.weight;
  args.out = matrix(operand(out, "embed", false, weight->abi.k, false), weight->abi.k);
  track(op, args.out);
  op.problem.weight_format = weight->abi.format;
  op.problem.n = weight->abi.panels * kPanel;
  op.problem.k = weight->abi.k;
  op.solo_rows = kSoloElements / weight->abi.k;
  vocabulary_ = std::min(vocabulary_, weight->abi.n);
  op.weight = std::move(weight);
  use_module(op, module);
  ops_.push_back(std::move(draft_op));
}

void Program::rmsnorm(Bindings kernels, int x, const Constant& weight, float eps, int out, const Epilogues& epilogues,
                      const NormSpec& spec, const std::string& module) {
  const bool samples = spec.gather || value(x).samples;
  auto draft_op = draft(INFENG_OP_RMSNORM, std::move(kernels), samples);
  Op& op = *draft_op;
  infeng_rmsnorm_args& args = op.args.rmsnorm;
  const int64_t k = weight.size;
  const bool has_heads = spec.heads != 1 || spec.column != 0 || x == out;
  if (spec.gather && has_heads) fail(kBad, "rmsnorm: rows with heads cannot be gathered");
  if (has_heads) {
    args.x = heads(operand(x, "rmsnorm", false, value(x).columns, samples), spec.column, spec.heads, k, "rmsnorm: x");
    op.need(INFENG_NEED_NORM_HEADS);
  } else {
    args.x = matrix(operand(x, "rmsnorm", false, k, spec.gather ? false : samples), k);
  }
  if (spec.gather) {
    args.row_index = op.index =
        arrays_.for_kernels(sample_rows_);  // x has all rows of the batch, so its view is not tracked
    op.index_at = &args.row_index;
    op.need(INFENG_NEED_ROW_GATHER);
  } else {
    track(op, args.x);
  }
  args.weight = vector(weight);
  op.vector = args.weight.data;
  op.vector_at = &args.weight.data;
  op.vector_bytes = k * 4;
  keep(weight);
  args.eps = eps;
  args.offset = spec.offset;
  if (spec.on_demand) op.needs_some = &is_demanded_;
  if (weight.data == nullptr) op.need(INFENG_NEED_NORM_PLAIN);
  if (spec.offset != 0) op.need(INFENG_NEED_NORM_OFFSET);
  op.problem.n = op.problem.k = k;
  if (add_epilogues(op, epilogues, k) != k) fail(kBad, "rmsnorm: cannot end in a gated multiplication");
  args.out = has_heads ? heads(value(out), spec.column, spec.heads, k, "rmsnorm: out") : result(out, k, op);
  track(op, args.out);
  op.solo_rows = kSoloElements / (k * spec.heads);
  use_module(op, module);
  ops_.push_back(std::move(draft_op));
}

void Program::linear(Bindings kernels, std::shared_ptr<const Weight> weight, int x, int out, const Epilogues& epilogues,
                     const std::string& module) {
  const infeng_weight& w = weight->abi;
  const bool samples = value(x).samples;
  auto draft_op = draft(INFENG_OP_LINEAR, std::move(kernels), samples);
  Op& op = *draft_op;
  infeng_linear_args& args = op.args.linear;
  check_apart("linear", x, out);
  op.problem.weight_format = w.format;
  op.problem.act_format = activation_of(w.format);
  op.problem.n = w.panels * kPanel;
  op.problem.k = w.k;
  const Value& in = operand(x, "linear", op.problem.act_format == INFENG_ACT_INT8_G64, w.k, samples);
  op.problem.act_format = activation_of(w.format, in.group);
  op.in = describe(in);
  if (!in.quantized) op.in.x = matrix(in, w.k);
  track(op, op.in);
  args.in = &op.in;
  args.weight = &w;
  op.weight_at = &args.weight;
  const int64_t columns = add_epilogues(op, epilogues, op.problem.n);
  args.out = result(out, columns, op);
  track(op, args.out);
  op.weight = std::move(weight);
  use_module(op, module);
  if (lora_.is_open()) args.common.next = &op.fetch.head;
  ops_.push_back(std::move(draft_op));
}

void Program::row_op(uint32_t number, Bindings kernels, int64_t columns, const RowOperands& given, int out,
                     const Epilogues& epilogues) {
  const OpKind& kind = op_kind(number);
  if (kind.operands.empty()) fail(kBad, kind.name, ": is no op over rows alone");
  const auto is_index = [](const Operand& operand) { return operand.kind == OperandKind::row_index; };
  const auto indices = std::ranges::count_if(kind.operands, is_index);
  if (given.rows.size() + given.vectors.size() + given.scalars.size() + indices != kind.operands.size()) {
    fail(kBad, kind.name, ": has ", kind.operands.size() - indices, " operands");
  }
  if (given.gather && indices == 0) fail(kBad, kind.name, ": its rows cannot be gathered");
  const auto take = [&](const auto& named, const Operand& operand) {
    const auto found = named.find(operand.name);
    if (found == named.end()) fail(kBad, kind.name, ": needs its operand ", operand.name);
    return found->second;
  };
  const int x = take(given.rows, kind.operands.front());
  const bool samples = given.gather || value(x).samples;
  auto draft_op = draft(number, std::move(kernels), samples);
  Op& op = *draft_op;
  op.row_copies = value(x).copies;
  for (Binding& binding : op.bindings) binding.rows *= op.row_copies;
  char* const args = reinterpret_cast<char*>(&op.args);
  std::memset(args + sizeof(infeng_args), 0, kind.args_size - sizeof(infeng_args));

  op.problem.n = op.problem.k = columns;
  for (const Operand& each : kind.operands) {
    auto& tensor = *reinterpret_cast<infeng_tensor*>(args + each.offset);
    if (each.kind == OperandKind::rows) {
      const bool is_gathered = given.gather && &each == &kind.operands.front();  // its view has all rows of the batch
      const Value& rows =
          operand(take(given.rows, each), kind.name, false, columns, samples && !is_gathered, op.row_copies);
      tensor = matrix(rows, columns);
      if (!is_gathered) track(op, tensor);
      // Kernels of libraries' ops may write a row before they have read all operands.
      if (number >= INFENG_OP_FOREIGN) check_apart(kind.name, given.rows.at(each.name), out);
    } else if (is_index(each)) {
      if (given.gather) {
        op.need(INFENG_NEED_ROW_GATHER);
        *reinterpret_cast<const int32_t**>(args + each.offset) = arrays_.for_kernels(sample_rows_);
      }
    } else if (each.kind == OperandKind::vector) {
      const Constant constant = take(given.vectors, each);
      if (take_vector(constant, columns, each.name) == nullptr)
        fail(kBad, kind.name, ": ", each.name, " has no values");
      tensor = vector(constant);
    } else {
      *reinterpret_cast<float*>(args + each.offset) = take(given.scalars, each);
    }
  }
  const int64_t left = add_epilogues(op, epilogues, columns);
  // A result of half the width lies at other addresses than its row of x, so in place it would overwrite a row that
  // another tile still reads.
  if (left != columns) check_apart(kind.name, x, out);
  auto& written = *reinterpret_cast<infeng_tensor*>(args + kind.out_offset);
  written = result(out, left, op);
  track(op, written);
  op.solo_rows = kSoloElements / columns;
  const bool only_adds = number == INFENG_OP_EPILOGUE && x == out && op.steps.size() == 1 && op.lora_slot >= 0;
  if (only_adds) op.needs_some = &op.steps[0].lora.segment_count;
  if (given.on_demand) op.needs_some = &is_demanded_;
  if (op.row_copies > 1) join_mixture(op);
  ops_.push_back(std::move(draft_op));
}

void Program::rope(Bindings kernels, int x, int64_t heads_q, int64_t heads_k, int64_t head_dim, int64_t k_column,
                   const Constant& cos, const Constant& sin, int64_t table_rows, const RopeSpec& spec,
                   const std::string& module) {
  auto draft_op = draft(INFENG_OP_ROPE, std::move(kernels), false);
  Op& op = *draft_op;
  infeng_rope_args& args = op.args.rope;
  const Value& in = operand(x, "rope", false, value(x).columns, false);
  args.q = heads(in, 0, heads_q, head_dim, "rope: q");
  args.k = heads(in, k_column, heads_k, head_dim, "rope: k");
  if (k_column < heads_q * head_dim) fail(kBad, "rope: k at column ", k_column, " overlaps q");
  track(op, args.q);
  track(op, args.k);
  const int64_t half = table_rows > 0 ? cos.size / table_rows : 0;
  if (half < 1 || cos.size != half * table_rows || sin.size != cos.size || 2 * half > head_dim) {
    fail(kBad, "rope: tables of ", cos.size, " and ", sin.size, " values in ", table_rows, " rows do not fit heads of ",
         head_dim);
  }
  args.cos = infeng_matrix(const_cast<float*>(cos.data), INFENG_F32, table_rows, half, half);
  args.sin = infeng_matrix(const_cast<float*>(sin.data), INFENG_F32, table_rows, half, half);
  keep(cos);
  keep(sin);
  args.positions = arrays_.for_kernels(positions_);
  args.q_norm = take_vector(spec.q_norm, head_dim, "rope: the norm of q");
  args.k_norm = take_vector(spec.k_norm, head_dim, "rope: the norm of k");
  args.q_scale = take_vector(spec.q_scale, table_rows, "rope: the scale of q");
  args.eps = spec.eps;
  if (args.q_norm != nullptr || args.k_norm != nullptr) op.need(INFENG_NEED_ROPE_NORM);
  if (args.q_scale != nullptr) op.need(INFENG_NEED_ROPE_SCALE);
  op.problem.heads = static_cast<int32_t>(heads_q);
  op.problem.kv_heads = static_cast<int32_t>(heads_k);
  op.problem.head_dim = op.problem.v_head_dim = static_cast<int32_t>(head_dim);
  op.problem.context = limits_.context;
  op.solo_rows = kSoloElements / ((heads_q + heads_k) * head_dim);
  positions_limit_ = std::min(positions_limit_, table_rows);
  if (!module.empty()) {
    if (args.q_norm == nullptr || args.k_norm == nullptr) fail(kBad, "rope: a module has both norms");
    op.vector = const_cast<float*>(args.q_norm);
    op.vector_at = reinterpret_cast<void**>(const_cast<float**>(&args.q_norm));
    op.second_at = &args.k_norm;
    op.second = args.k_norm;
    op.second_offset = round_up(head_dim, kPanel) * 4;
    op.vector_bytes = 2 * op.second_offset;
    op.index_at = &args.positions;
    op.index = args.positions;
    use_module(op, module);
  }
  ops_.push_back(std::move(draft_op));
}

const infeng_kv_segment* Program::use_cache(Op& op, std::shared_ptr<const KvCache> cache, int64_t layer,
                                            int64_t table) {
  if (table < 0 || table >= limits_.tables) {
    fail(kBad, "sequences have ", limits_.tables, " tables of blocks, there is no table ", table);
  }
  op.cache = cache->layer(layer);
  op.problem.kv_format = op.cache.format;
  op.problem.kv_heads = op.cache.kv_heads;
  op.problem.head_dim = op.cache.head_dim;
  op.problem.v_head_dim = op.cache.v_head_dim;
  op.problem.context = limits_.context;
  if (op.cache.head_dim != op.cache.v_head_dim) op.need(INFENG_NEED_HEAD_SIZES);
  const int64_t blocks = op.cache.block_count;
  blocks_limit_ = has_cache_ ? std::min(blocks_limit_, blocks) : blocks;
  has_cache_ = true;
  owners_.push_back(std::move(cache));
  return segments_ + table * limits_.segments;
}

void Program::kv_append(Bindings kernels, int x, std::shared_ptr<const KvCache> cache, int64_t layer, int64_t k_column,
                        int64_t v_column, int64_t table) {
  auto draft_op = draft(INFENG_OP_KV_APPEND, std::move(kernels), false);
  Op& op = *draft_op;
  infeng_kv_append_args& args = op.args.kv_append;
  args.segments = use_cache(op, std::move(cache), layer, table);
  args.cache = &op.cache;
  const Value& in = operand(x, "kv_append", false, value(x).columns, false);
  args.k = heads(in, k_column, op.cache.kv_heads, op.cache.head_dim, "kv_append: k");
  args.v = heads(in, v_column, op.cache.kv_heads, op.cache.v_head_dim, "kv_append: v");
  track(op, args.k);
  track(op, args.v);
  args.segment_stride = sizeof(infeng_kv_segment);
  op.segments_at = &args.segment_count;
  op.solo_rows = kSoloElements / (int64_t{op.cache.kv_heads} * (op.cache.head_dim + op.cache.v_head_dim));
  ops_.push_back(std::move(draft_op));
}

void Program::attention(Bindings kernels, int x, std::shared_ptr<const KvCache> cache, int64_t layer, int out,
                        const AttentionSpec& spec, const Epilogues& epilogues) {
  auto draft_op = draft(INFENG_OP_ATTENTION, std::move(kernels), false);
  Op& op = *draft_op;
  infeng_attention_args& args = op.args.attention;
  args.segments = use_cache(op, std::move(cache), layer, spec.table);
  args.cache = &op.cache;
  check_apart("attention", x, out);
  if (spec.heads < 1 || spec.heads % op.cache.kv_heads != 0) {
    fail(kBad, "attention: ", spec.heads, " heads cannot share ", op.cache.kv_heads, " kv heads evenly");
  }
  if (spec.window < 0 || spec.window > INT32_MAX) {
    fail(kBad, "attention: a window of ", spec.window, " positions");
  }
  if (!(spec.softcap >= 0) || spec.softcap > FLT_MAX) {
    fail(kBad, "attention: a soft cap of ", spec.softcap);
  }
  const int64_t columns = spec.heads * op.cache.v_head_dim;
  const Value& in = operand(x, "attention", false, value(x).columns, false);
  args.q = heads(in, 0, spec.heads, op.cache.head_dim, "attention: q");
  track(op, args.q);
  args.segment_stride = sizeof(infeng_kv_segment);
  op.segments_at = &args.segment_count;
  args.scale = spec.scale;
  args.window = static_cast<int32_t>(spec.window);
  args.softcap = spec.softcap;
  args.mask = spec.mask;
  args.sinks = take_vector(spec.sinks, spec.heads, "attention: sinks");
  args.slopes = take_vector(spec.slopes, spec.heads, "attention: slopes");
  if (args.window > 0) op.need(INFENG_NEED_WINDOW);
  if (args.softcap > 0) op.need(INFENG_NEED_SOFTCAP);
  if (args.mask != INFENG_MASK_CAUSAL) op.need(INFENG_NEED_MASK);
  if (args.sinks != nullptr) op.need(INFENG_NEED_SINKS);
  if (args.slopes != nullptr) op.need(INFENG_NEED_ALIBI);
  Sight& sight = sights_[static_cast<size_t>(spec.table)];
  sight.widest_window = std::max(sight.widest_window, spec.window);
  sight.sees_all = sight.sees_all || spec.window == 0;
  op.problem.heads = static_cast<int32_t>(spec.heads);
  if (add_epilogues(op, epilogues, columns) != columns) {
    fail(kBad, "attention: cannot end in a gated multiplication");
  }
  args.out = result(out, columns, op);
  track(op, args.out);
  ops_.push_back(std::move(draft_op));
}

}  // namespace infeng
