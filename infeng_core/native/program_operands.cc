// What all ops share: operands, kernels and epilogues, each checked when it is named.
#include <utility>

#include "error.h"
#include "names.h"
#include "program.h"
#include "tensors.h"

namespace infeng {
namespace {

int64_t padded(int64_t columns) { return round_up(columns, kPanel); }

void check_size(const char* what, const Constant& constant, int64_t size) {
  if (constant.size != size) {
    fail("invalid_argument", what, " has ", constant.size, " values, the op needs ", size);
  }
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
  op->fetch.head = {sizeof op->fetch, INFENG_EXTENSION_FETCH, nullptr};
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
      case INFENG_EPILOGUE_LORA:
        add_lora(op, spec.value, columns);
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

}  // namespace infeng
