// The common parts of all ops: operands, kernels and epilogues, each checked when an op is added.
#include <infeng/extension/error.h>

#include <algorithm>
#include <utility>

#include "program/program.h"
#include "program/tensors.h"
#include "vocabulary/names.h"

namespace infeng {
namespace {

int64_t padded(int64_t columns) { return round_up(columns, kPanel); }

// The function of a step that quantizes.
uint32_t function_of(const infeng_activation& act) {
  if (act.group == INFENG_GROUP_ROW) return INFENG_FUNCTION_ROW;
  return act.group != kGroup || act.rotated != 0 ? INFENG_FUNCTION_WIDE : INFENG_FUNCTION_IDENTITY;
}

void check_fused(const Kernel& kernel, const infeng_epilogue& step) {
  const bool fuses = (kernel.abi.fuses & INFENG_EPILOGUE_BIT(step.kind)) != 0;
  if (fuses && (needs_of(step) & ~kernel.abi.handles) == 0) return;
  fail("not_fused", kernel.full_name(), ": does not fuse ", name_of(step), "; put it into an epilogue op of its own");
}

}  // namespace

const Value& Program::operand(int id, const char* what, bool quantized, int64_t columns, bool samples,
                              int64_t copies) const {
  const Value& v = value(id);
  if (v.quantized != quantized) {
    fail(kBad, what, ": value ", id, " is ", v.quantized ? "an int8 activation" : "an f32 buffer", ", the op needs ",
         quantized ? "an int8 activation" : "an f32 buffer");
  }
  if (padded(v.columns) != padded(columns)) {
    fail(kBad, what, ": value ", id, " has ", v.columns, " columns, the op needs ", columns);
  }
  if (v.samples != samples) {
    fail(kBad, what, ": value ", id, " has a row for each ", v.samples ? "sampled row" : "row of the batch",
         ", the op works on ", samples ? "sampled rows" : "rows of the batch");
  }
  if (v.copies != copies) {
    fail(kBad, what, ": value ", id, " has ", v.copies, " copies of each row, the op works on ", copies);
  }
  if (v.on_host != drafts_on_host_) {
    fail(kBad, what, ": value ", id, " is ", v.on_host ? "the host's" : "the device's", ", the op's kernels are not");
  }
  return v;
}

std::unique_ptr<Op> Program::draft(uint32_t kind, Bindings kernels, bool samples) {
  const std::string name = name_of(Vocabulary::op, kind);
  if (finished_) fail("finished", "the program is finished: add ops before finish()");
  const int64_t all = samples ? limits_.samples : limits_.rows;
  int64_t last = 0;
  for (const Binding& binding : kernels) {
    if (binding.kernel == nullptr) fail(kBad, name, ": a kernel is missing");
    if (binding.kernel->abi.op != kind) {
      fail(kBad, binding.kernel->full_name(), ": is a kernel for ", name_of(Vocabulary::op, binding.kernel->abi.op),
           ", not for ", name);
    }
    if (binding.rows <= last) fail(kBad, name, ": the row bounds of its kernels do not ascend");
    last = binding.rows;
  }
  if (kernels.empty() || last < all) {
    fail(kBad, name, ": its kernels are bound up to ", last, " rows, the program has up to ", all);
  }
  auto op = std::make_unique<Op>();
  op->samples = samples;
  op->branch = branch_;
  op->bindings = std::move(kernels);
  op->args.common.struct_size = static_cast<uint32_t>(op_kind(kind).args_size);
  op->problem.struct_size = sizeof(infeng_problem);
  op->problem.op = kind;
  op->fetch.head = {sizeof op->fetch, INFENG_EXTENSION_FETCH, nullptr};
  op->on_host = drafts_on_host_ = split_ && op->bindings.front().kernel->library->device == nullptr;
  op->before = std::exchange(upcoming_, {});
  return op;
}

// Checks the size of a vector and keeps it alive. Returns its data; NULL if the constant has none.
const float* Program::take_vector(const Constant& constant, int64_t size, const char* what) {
  if (constant.data == nullptr) return nullptr;
  if (constant.size != size) fail(kBad, what, " has ", constant.size, " values, the op needs ", size);
  keep(constant);
  return constant.data;
}

// Returns the columns of the matrix after the last step.
int64_t Program::add_epilogues(Op& op, const Epilogues& specs, int64_t columns) {
  op.steps.reserve(specs.size());
  const int64_t sets = op.routing == nullptr ? 1 : op.routing->experts;  // of vectors: one for each expert
  for (const EpilogueSpec& spec : specs) {
    ListedStep& step = op.steps.emplace_back();
    op.list.push_back(&step.head);
    step.head = {sizeof step.head, spec.kind, nullptr, spec.function, spec.scalar, spec.limit, 0};
    const std::string name = name_of(step.head);
    switch (spec.kind) {
      case INFENG_EPILOGUE_BIAS:
      case INFENG_EPILOGUE_ROW_SCALE:
        if (take_vector(spec.constant, columns * sets, name.c_str()) == nullptr) {
          fail(kBad, name, ": needs a vector of ", columns * sets, " values");
        }
        step.head.struct_size = sizeof step.operand;
        step.operand.operand = vector(spec.constant);
        break;
      case INFENG_EPILOGUE_RESIDUAL:
      case INFENG_EPILOGUE_MUL:
        step.head.struct_size = sizeof step.operand;
        step.operand.operand = matrix(operand(spec.value, name.c_str(), false, columns, op.samples), columns);
        track(op, step.operand.operand);
        break;
      case INFENG_EPILOGUE_GATED_MUL:
        if (columns % (2 * kPanel) != 0) {
          fail(kBad, name, ": ", columns, " columns are not pairs of gate and up panels of 16");
        }
        columns /= 2;
        break;
      case INFENG_EPILOGUE_QUANTIZE:
        step.head.struct_size = sizeof step.quantize;
        step.act = describe(operand(spec.value, name.c_str(), true, columns, op.samples, op.copies_of_rows()));
        step.head.function = function_of(step.act);
        step.quantize.act = &step.act;
        track(op, step.act);
        break;
      case INFENG_EPILOGUE_SCALE:
      case INFENG_EPILOGUE_SOFTCAP:
      case INFENG_EPILOGUE_ACTIVATE:
        break;
      case INFENG_EPILOGUE_LORA:
        add_lora(op, spec.value, columns);
        break;
      default:
        fail("unsupported", "epilogue ", name, " cannot be added to a program");
    }
    op.problem.needs |= needs_of(step.head);
    for (const Binding& binding : op.bindings) check_fused(*binding.kernel, step.head);
  }
  infeng_args& common = op.args.common;
  common.epilogue_count = op.problem.epilogue_count = static_cast<uint32_t>(op.list.size());
  common.epilogues = op.problem.epilogues = op.list.empty() ? nullptr : op.list.data();
  return columns;
}

bool Op::has_step(uint32_t step_kind) const {
  return std::any_of(list.begin(), list.end(), [&](const infeng_epilogue* step) { return step->kind == step_kind; });
}

infeng_tensor Program::result(int out, int64_t columns, const Op& op) const {
  if (out >= 0) return matrix(operand(out, "out", false, columns, op.samples, op.copies_of_rows()), columns);
  if (!op.has_step(INFENG_EPILOGUE_QUANTIZE)) {
    fail(kBad, name_of(Vocabulary::op, op.problem.op), ": has neither an output nor a quantize step");
  }
  return infeng_matrix(nullptr, INFENG_F32, 0, columns, 0);
}

}  // namespace infeng
