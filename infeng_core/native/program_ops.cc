// What each op of a program checks, and the argument struct that its kernels get.
#include <algorithm>
#include <utility>

#include "error.h"
#include "names.h"
#include "program.h"

namespace infeng {
namespace {

// Up to this many elements a worker alone is done before the others have come and gone through a barrier.
constexpr int64_t kSoloElements = 16384;

int64_t padded(int64_t columns) { return round_up(columns, kPanel); }

infeng_tensor tensor(void* data, int32_t dtype, int64_t rows, int64_t columns, int64_t stride) {
  infeng_tensor t{};
  t.data = data;
  t.dtype = dtype;
  t.device_type = INFENG_DEVICE_CPU;
  t.ndim = 2;
  t.shape[0] = rows;
  t.shape[1] = columns;
  t.strides[0] = stride;
  t.strides[1] = 1;
  return t;
}

infeng_tensor matrix(const Value& value, int64_t columns) {
  return tensor(value.x, INFENG_F32, value.rows, columns, value.stride);
}

infeng_tensor vector(const Constant& constant) {
  infeng_tensor t = tensor(const_cast<float*>(constant.data), INFENG_F32, constant.size, 0, 1);
  t.ndim = 1;
  t.shape[1] = t.strides[1] = 0;
  return t;
}

infeng_tensor heads(const Value& value, int64_t column, int64_t count, int64_t head_dim, const char* what) {
  if (count < 1 || head_dim < 1 || column < 0 || column % kPanel != 0 || column + count * head_dim > value.stride) {
    fail("invalid_argument", what, ": ", count, " heads of ", head_dim, " from column ", column,
         " on do not fit in a buffer of ", value.columns, " columns, or do not start on a panel of 16");
  }
  infeng_tensor t = matrix(value, count);
  t.data = value.x + column;
  t.ndim = 3;
  t.shape[2] = head_dim;
  t.strides[1] = head_dim;
  t.strides[2] = 1;
  return t;
}

infeng_activation describe(const Value& value) {
  infeng_activation a{};
  a.struct_size = sizeof a;
  a.group = kGroup;
  if (value.quantized) {
    a.q = tensor(value.q, INFENG_I8, value.rows, value.stride, value.stride);
    a.scale = tensor(value.scale, INFENG_F32, value.rows, value.groups, value.group_stride);
    a.sum = tensor(value.sum, INFENG_I32, value.rows, value.groups, value.group_stride);
  }
  return a;
}

// Remembers where the tensor says how many rows it has.
void track(Op& op, infeng_tensor& tensor) {
  if (tensor.data != nullptr) op.row_fields.push_back(&tensor.shape[0]);
}

void track(Op& op, infeng_activation& activation) {
  for (infeng_tensor* t : {&activation.x, &activation.q, &activation.scale, &activation.sum}) track(op, *t);
}

void check_size(const char* what, const Constant& constant, int64_t size) {
  if (constant.size != size) {
    fail("invalid_argument", what, " has ", constant.size, " values, the op needs ", size);
  }
}

void check_apart(const char* op, int x, int out) {
  if (x == out) fail("invalid_argument", op, ": buffer ", x, " is both input and output; use two buffers");
}

}  // namespace

const Value& Program::operand(int id, const char* what, bool quantized, int64_t columns, bool samples) const {
  const Value& v = value(id);
  if (v.quantized != quantized) {
    fail("invalid_argument", what, ": value ", id, " is ", v.quantized ? "an int8 activation" : "an f32 buffer",
         ", the op needs ", quantized ? "an int8 activation" : "an f32 buffer");
  }
  if (padded(v.columns) != padded(columns)) {
    fail("invalid_argument", what, ": value ", id, " has ", v.columns, " columns, the op needs ", columns);
  }
  if (v.samples != samples) {
    fail("invalid_argument", what, ": value ", id, " has a row for each ",
         v.samples ? "sampled row" : "row of the batch", ", the op works on ",
         samples ? "sampled rows" : "rows of the batch");
  }
  return v;
}

std::unique_ptr<Op> Program::draft(uint32_t kind, Bindings kernels, bool samples) const {
  const std::string name = name_of(Vocabulary::op, kind);
  if (finished_) fail("finished", "the program is finished: add ops before finish()");
  const int64_t all = samples ? limits_.samples : limits_.rows;
  int64_t last = 0;
  for (const Binding& binding : kernels) {
    if (binding.kernel == nullptr) fail("invalid_argument", name, ": a kernel is missing");
    if (binding.kernel->abi.op != kind) {
      fail("invalid_argument", binding.kernel->full_name(), ": is a kernel for ",
           name_of(Vocabulary::op, binding.kernel->abi.op), ", not for ", name);
    }
    if (binding.rows <= last) fail("invalid_argument", name, ": the row bounds of its kernels do not ascend");
    last = binding.rows;
  }
  if (kernels.empty() || last < all) {
    fail("invalid_argument", name, ": its kernels are bound up to ", last, " rows, the program has up to ", all);
  }
  auto op = std::make_unique<Op>();
  op->samples = samples;
  op->bindings = std::move(kernels);
  op->problem.struct_size = sizeof(infeng_problem);
  op->problem.op = kind;
  return op;
}

// Returns the columns of the matrix after the last step.
int64_t Program::add_epilogues(Op& op, const Epilogues& specs, int64_t columns) {
  op.epilogues.reserve(specs.size());  // their addresses are kept
  for (const EpilogueSpec& spec : specs) {
    const std::string name = name_of(Vocabulary::epilogue, spec.kind);
    infeng_epilogue& epilogue = op.epilogues.emplace_back();
    epilogue.struct_size = sizeof epilogue;
    epilogue.kind = spec.kind;
    switch (spec.kind) {
      case INFENG_EPILOGUE_BIAS:
      case INFENG_EPILOGUE_ROW_SCALE:
        check_size(name.c_str(), spec.constant, columns);
        epilogue.operand = vector(spec.constant);
        keep(spec.constant);
        break;
      case INFENG_EPILOGUE_RESIDUAL:
        epilogue.operand = matrix(operand(spec.value, name.c_str(), false, columns, op.samples), columns);
        track(op, epilogue.operand);
        break;
      case INFENG_EPILOGUE_SILU_MUL:
        if (columns % (2 * kPanel) != 0) {
          fail("invalid_argument", "silu_mul: ", columns, " columns are not pairs of gate and up panels of 16");
        }
        columns /= 2;
        break;
      case INFENG_EPILOGUE_QUANTIZE:
        epilogue.act = describe(operand(spec.value, name.c_str(), true, columns, op.samples));
        track(op, epilogue.act);
        break;
      default:
        fail("unsupported", "epilogue ", name, " cannot be added to a program");
    }
    op.problem.epilogues |= INFENG_EPILOGUE_BIT(spec.kind);
  }
  for (const Binding& binding : op.bindings) {
    const uint32_t missing = op.problem.epilogues & ~binding.kernel->abi.fuses;
    if (missing != 0) {
      fail("not_fused", binding.kernel->full_name(), ": does not fuse ", epilogue_names(missing).front(),
           "; put it into an epilogue op of its own");
    }
  }
  infeng_args& common = op.args.common;
  common.epilogue_count = static_cast<uint32_t>(op.epilogues.size());
  common.epilogues = op.epilogues.empty() ? nullptr : op.epilogues.data();
  return columns;
}

infeng_tensor Program::result(int out, int64_t columns, const Op& op) const {
  if (out >= 0) return matrix(operand(out, "out", false, columns, op.samples), columns);
  if ((op.problem.epilogues & INFENG_EPILOGUE_BIT(INFENG_EPILOGUE_QUANTIZE)) == 0) {
    fail("invalid_argument", name_of(Vocabulary::op, op.problem.op), ": has neither an output nor a quantize step");
  }
  return tensor(nullptr, INFENG_F32, 0, columns, 0);
}

void Program::embed(Bindings kernels, std::shared_ptr<const Weight> weight, int out) {
  auto draft_op = draft(INFENG_OP_EMBED, std::move(kernels), false);
  Op& op = *draft_op;
  infeng_embed_args& args = op.args.embed;
  args.common.struct_size = sizeof args;
  args.ids = tokens_;
  args.weight = weight->abi;
  args.out = matrix(operand(out, "embed", false, weight->abi.k, false), weight->abi.k);
  track(op, args.out);
  op.problem.weight_format = weight->abi.format;
  op.problem.n = weight->abi.panels * kPanel;
  op.problem.k = weight->abi.k;
  op.solo_rows = kSoloElements / weight->abi.k;
  vocabulary_ = std::min(vocabulary_, weight->abi.n);
  owners_.push_back(std::move(weight));
  ops_.push_back(std::move(draft_op));
}

void Program::rmsnorm(Bindings kernels, int x, Constant weight, float eps, int out, const Epilogues& epilogues,
                      bool gather) {
  const bool samples = gather || value(x).samples;
  auto draft_op = draft(INFENG_OP_RMSNORM, std::move(kernels), samples);
  Op& op = *draft_op;
  infeng_rmsnorm_args& args = op.args.rmsnorm;
  args.common.struct_size = sizeof args;
  if (!gather) check_apart("rmsnorm", x, out);
  const int64_t k = weight.size;
  args.x = matrix(operand(x, "rmsnorm", false, k, gather ? false : samples), k);
  if (gather) {
    args.row_index = sample_rows_;  // x keeps all rows of the batch, whatever is sampled
  } else {
    track(op, args.x);
  }
  args.weight = vector(weight);
  keep(weight);
  args.eps = eps;
  op.problem.n = op.problem.k = k;
  if (add_epilogues(op, epilogues, k) != k) fail("invalid_argument", "rmsnorm: does not end in silu_mul");
  args.out = result(out, k, op);
  track(op, args.out);
  op.solo_rows = kSoloElements / k;
  ops_.push_back(std::move(draft_op));
}

void Program::linear(Bindings kernels, std::shared_ptr<const Weight> weight, int x, int out,
                     const Epilogues& epilogues) {
  const infeng_weight& w = weight->abi;
  const bool samples = value(x).samples;
  auto draft_op = draft(INFENG_OP_LINEAR, std::move(kernels), samples);
  Op& op = *draft_op;
  infeng_linear_args& args = op.args.linear;
  args.common.struct_size = sizeof args;
  check_apart("linear", x, out);
  op.problem.weight_format = w.format;
  op.problem.act_format = activation_of(w.format);
  op.problem.n = w.panels * kPanel;
  op.problem.k = w.k;
  const Value& in = operand(x, "linear", op.problem.act_format == INFENG_ACT_INT8_G64, w.k, samples);
  args.in = describe(in);
  if (!in.quantized) args.in.x = matrix(in, w.k);
  track(op, args.in);
  args.weight = w;
  const int64_t columns = add_epilogues(op, epilogues, op.problem.n);
  args.out = result(out, columns, op);
  track(op, args.out);
  owners_.push_back(std::move(weight));
  ops_.push_back(std::move(draft_op));
}

void Program::epilogue(Bindings kernels, int x, int64_t columns, int out, const Epilogues& epilogues) {
  const bool samples = value(x).samples;
  auto draft_op = draft(INFENG_OP_EPILOGUE, std::move(kernels), samples);
  Op& op = *draft_op;
  infeng_epilogue_args& args = op.args.epilogue;
  args.common.struct_size = sizeof args;
  args.in = matrix(operand(x, "epilogue", false, columns, samples), columns);
  track(op, args.in);
  op.problem.n = op.problem.k = columns;
  const int64_t left = add_epilogues(op, epilogues, columns);
  // Half as wide, a row of `out` would be written over a row of `in` that another tile still reads.
  if (left != columns) check_apart("epilogue with silu_mul", x, out);
  args.out = result(out, left, op);
  track(op, args.out);
  op.solo_rows = kSoloElements / columns;
  ops_.push_back(std::move(draft_op));
}

void Program::rope(Bindings kernels, int x, int64_t heads_q, int64_t heads_k, int64_t head_dim, int64_t k_column,
                   Constant cos, Constant sin, int64_t table_rows) {
  auto draft_op = draft(INFENG_OP_ROPE, std::move(kernels), false);
  Op& op = *draft_op;
  infeng_rope_args& args = op.args.rope;
  args.common.struct_size = sizeof args;
  const Value& in = operand(x, "rope", false, value(x).columns, false);
  args.q = heads(in, 0, heads_q, head_dim, "rope: q");
  args.k = heads(in, k_column, heads_k, head_dim, "rope: k");
  if (k_column < heads_q * head_dim) fail("invalid_argument", "rope: k at column ", k_column, " overlaps q");
  track(op, args.q);
  track(op, args.k);
  const int64_t half = table_rows > 0 ? cos.size / table_rows : 0;
  if (half < 1 || cos.size != half * table_rows || sin.size != cos.size || 2 * half > head_dim) {
    fail("invalid_argument", "rope: tables of ", cos.size, " and ", sin.size, " values in ", table_rows,
         " rows do not fit heads of ", head_dim);
  }
  args.cos = tensor(const_cast<float*>(cos.data), INFENG_F32, table_rows, half, half);
  args.sin = tensor(const_cast<float*>(sin.data), INFENG_F32, table_rows, half, half);
  keep(cos);
  keep(sin);
  args.positions = positions_;
  op.problem.heads = static_cast<int32_t>(heads_q);
  op.problem.kv_heads = static_cast<int32_t>(heads_k);
  op.problem.head_dim = static_cast<int32_t>(head_dim);
  op.problem.context = limits_.context;
  op.solo_rows = kSoloElements / ((heads_q + heads_k) * head_dim);
  positions_limit_ = std::min(positions_limit_, table_rows);
  ops_.push_back(std::move(draft_op));
}

void Program::use_cache(std::shared_ptr<const KvCache> cache) {
  const int64_t blocks = cache->shape().block_count;
  blocks_limit_ = has_cache_ ? std::min(blocks_limit_, blocks) : blocks;
  has_cache_ = true;
  owners_.push_back(std::move(cache));
}

void Program::kv_append(Bindings kernels, int x, std::shared_ptr<const KvCache> cache, int64_t layer, int64_t k_column,
                        int64_t v_column) {
  auto draft_op = draft(INFENG_OP_KV_APPEND, std::move(kernels), false);
  Op& op = *draft_op;
  infeng_kv_append_args& args = op.args.kv_append;
  args.common.struct_size = sizeof args;
  args.cache = cache->layer(layer);
  const Value& in = operand(x, "kv_append", false, value(x).columns, false);
  args.k = heads(in, k_column, args.cache.kv_heads, args.cache.head_dim, "kv_append: k");
  args.v = heads(in, v_column, args.cache.kv_heads, args.cache.head_dim, "kv_append: v");
  track(op, args.k);
  track(op, args.v);
  args.segments = segments_;
  args.segment_stride = sizeof(infeng_kv_segment);
  op.problem.kv_format = args.cache.format;
  op.problem.kv_heads = args.cache.kv_heads;
  op.problem.head_dim = args.cache.head_dim;
  op.problem.context = limits_.context;
  op.solo_rows = kSoloElements / (2 * int64_t{args.cache.kv_heads} * args.cache.head_dim);
  use_cache(std::move(cache));
  ops_.push_back(std::move(draft_op));
}

void Program::attention(Bindings kernels, int x, std::shared_ptr<const KvCache> cache, int64_t layer, int out,
                        int64_t heads_q, int64_t window, float scale, const Epilogues& epilogues) {
  auto draft_op = draft(INFENG_OP_ATTENTION, std::move(kernels), false);
  Op& op = *draft_op;
  infeng_attention_args& args = op.args.attention;
  args.common.struct_size = sizeof args;
  args.cache = cache->layer(layer);
  check_apart("attention", x, out);
  if (heads_q < 1 || heads_q % args.cache.kv_heads != 0) {
    fail("invalid_argument", "attention: ", heads_q, " heads cannot share ", args.cache.kv_heads, " kv heads evenly");
  }
  if (window < 0 || window > INT32_MAX) fail("invalid_argument", "attention: a window of ", window, " positions");
  const int64_t columns = heads_q * args.cache.head_dim;
  const Value& in = operand(x, "attention", false, value(x).columns, false);
  args.q = heads(in, 0, heads_q, args.cache.head_dim, "attention: q");
  track(op, args.q);
  args.segments = segments_;
  args.segment_stride = sizeof(infeng_kv_segment);
  args.scale = scale;
  args.window = static_cast<int32_t>(window);
  op.problem.kv_format = args.cache.format;
  op.problem.heads = static_cast<int32_t>(heads_q);
  op.problem.kv_heads = args.cache.kv_heads;
  op.problem.head_dim = args.cache.head_dim;
  op.problem.context = limits_.context;
  if (add_epilogues(op, epilogues, columns) != columns) fail("invalid_argument", "attention: does not end in silu_mul");
  args.out = result(out, columns, op);
  track(op, args.out);
  use_cache(std::move(cache));
  ops_.push_back(std::move(draft_op));
}

}  // namespace infeng
