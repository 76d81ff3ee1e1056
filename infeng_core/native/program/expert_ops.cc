// Adding the ops of a mixture of experts: the checks of each, and its kernels' argument struct.
#include <infeng/extension/error.h>

#include <utility>

#include "program/ops.h"
#include "program/program.h"
#include "program/tensors.h"

namespace infeng {

void Program::expert_linear(Bindings kernels, std::shared_ptr<const Weight> weight, int x, int out,
                            const Epilogues& epilogues, int routing) {
  const infeng_weight& w = weight->abi;
  auto draft_op = draft(INFENG_OP_LINEAR, std::move(kernels), false);
  Op& op = *draft_op;
  infeng_linear_args& args = op.args.linear;
  check_apart("linear", x, out);
  op.routing = &routing_of(routing);
  if (w.panels % op.routing->experts != 0) {
    fail(kBad, "linear: ", w.panels, " panels do not hold ", op.routing->experts, " experts");
  }
  if (epilogues.size() > kMostExpertSteps) fail("unsupported", "linear: experts have at most 4 steps");
  int biases = 0;
  for (const EpilogueSpec& step : epilogues) {
    biases += step.kind == INFENG_EPILOGUE_BIAS ? 1 : 0;
    const bool is_fit = step.kind == INFENG_EPILOGUE_GATED_MUL || step.kind == INFENG_EPILOGUE_QUANTIZE ||
                        step.kind == INFENG_EPILOGUE_SCALE || step.kind == INFENG_EPILOGUE_ACTIVATE ||
                        step.kind == INFENG_EPILOGUE_LORA || step.kind == INFENG_EPILOGUE_BIAS;
    if (!is_fit || biases > 1) fail("unsupported", "linear: this step cannot follow a linear of experts");
  }
  op.problem.weight_format = w.format;
  op.problem.act_format = activation_of(w.format);
  op.problem.n = w.panels / op.routing->experts * kPanel;
  op.problem.k = w.k;
  const bool quantized = op.problem.act_format == INFENG_ACT_INT8_G64;
  const Value& in = operand(x, "linear", quantized, w.k, false, op.routing->top_k);
  op.problem.act_format = activation_of(w.format, in.group);
  op.in = describe(in);
  if (!in.quantized) op.in.x = matrix(in, w.k);
  args.in = &op.in;
  args.weight = &w;
  const int64_t columns = add_epilogues(op, epilogues, op.problem.n);
  args.out = result(out, columns, op);
  op.weight = std::move(weight);
  join_mixture(op);
  expert_calls_.reserve(op.routing->experts, limits_.rows * op.routing->top_k);
  ops_.push_back(std::move(draft_op));
}

int Program::routing(int64_t experts, int64_t top_k) {
  if (finished_) fail("finished", "the program is finished: declare routings before finish()");
  if (experts < 1 || experts > INFENG_MOST_EXPERTS || top_k < 1 || top_k > INFENG_MOST_CHOSEN || top_k > experts) {
    fail(kBad, "a row cannot go to ", top_k, " of ", experts, " experts: 1 to ", INFENG_MOST_CHOSEN, " of at most ",
         INFENG_MOST_EXPERTS);
  }
  auto made = std::make_unique<Routing>();
  made->experts = experts;
  made->top_k = top_k;
  const int64_t copies = limits_.rows * top_k;
  Routing::Arrays& arrays = made->for_kernels;
  arrays = {values_memory_.take_array<int32_t>(copies), values_memory_.take_array<float>(copies),
            values_memory_.take_array<int32_t>(copies), values_memory_.take_array<int32_t>(experts + 1)};
  made->for_host = arrays;
  if (device_ != nullptr) {
    made->for_host = {memory_.take_array<int32_t>(copies), memory_.take_array<float>(copies),
                      memory_.take_array<int32_t>(copies), memory_.take_array<int32_t>(experts + 1)};
  }
  routings_.push_back(std::move(made));
  return static_cast<int>(routings_.size()) - 1;
}

const Routing& Program::routing_of(int id) const {
  if (id < 0 || static_cast<size_t>(id) >= routings_.size()) {
    fail(kBad, "there is no routing ", id, "; the program has ", routings_.size());
  }
  return *routings_[static_cast<size_t>(id)];
}

void Program::route(Bindings kernels, int logits, int x, int out, const RouteSpec& spec) {
  auto draft_op = draft(INFENG_OP_ROUTE, std::move(kernels), false);
  Op& op = *draft_op;
  infeng_route_args& args = op.args.route;
  const Routing& routing = routing_of(spec.routing);
  args.logits = matrix(operand(logits, "route: logits", false, routing.experts, false), routing.experts);
  track(op, args.logits);
  const bool quantized = value(x).quantized;
  const Value& in = operand(x, "route: x", quantized, spec.columns, false);
  const Value& to = operand(out, "route: out", quantized, spec.columns, false, routing.top_k);
  if (in.group != to.group || in.rotated != to.rotated) {
    fail(kBad, "route: x and out have different groups or rotations");
  }
  op.in = describe(in);
  op.copies = describe(to);
  if (!quantized) {
    op.in.x = matrix(in, spec.columns);
    op.copies.x = matrix(to, spec.columns);
  }
  track(op, op.in);
  args.in = &op.in;
  args.out = &op.copies;
  args.experts = routing.for_kernels.chosen;
  args.weights = routing.for_kernels.weights;
  args.places = routing.for_kernels.places;
  args.begin = routing.for_kernels.begin;
  args.top_k = static_cast<int32_t>(routing.top_k);
  args.share = spec.share_of_chosen ? INFENG_SHARE_CHOSEN : INFENG_SHARE_ALL;
  op.problem.act_format = quantized ? INFENG_ACT_INT8_G64 : INFENG_ACT_F32;
  op.problem.k = spec.columns;
  op.problem.experts = static_cast<int32_t>(routing.experts);
  op.problem.top_k = args.top_k;
  op.solo_rows = kSoloElements / (routing.experts + routing.top_k * spec.columns);
  if (spec.for_adapters) route_for_adapters_ = &op;
  if (split_) mixtures_.push_back(std::make_unique<Mixture>(*split_, routing));
  ops_.push_back(std::move(draft_op));
}

void Program::combine(Bindings kernels, int x, int64_t columns, int routing, int out, const Epilogues& epilogues,
                      int shared, int gate) {
  auto draft_op = draft(INFENG_OP_COMBINE, std::move(kernels), false);
  Op& op = *draft_op;
  infeng_combine_args& args = op.args.combine;
  const Routing& from = routing_of(routing);
  check_apart("combine", x, out);
  args.x = matrix(operand(x, "combine: x", false, columns, false, from.top_k), columns);
  args.weights = from.for_kernels.weights;
  args.places = from.for_kernels.places;
  args.top_k = static_cast<int32_t>(from.top_k);
  if (shared >= 0) {
    check_apart("combine", shared, out);
    args.shared = matrix(operand(shared, "combine: shared", false, columns, false), columns);
    track(op, args.shared);
  }
  if (gate >= 0) {
    if (shared < 0) fail(kBad, "combine: a gate needs a shared expert");
    args.gate = matrix(operand(gate, "combine: gate", false, 1, false), 1);
    track(op, args.gate);
  }
  op.problem.n = op.problem.k = columns;
  op.problem.top_k = args.top_k;
  if (add_epilogues(op, epilogues, columns) != columns) {
    fail(kBad, "combine: cannot end in a gated multiplication");
  }
  args.out = result(out, columns, op);
  track(op, args.out);
  op.solo_rows = kSoloElements / (columns * from.top_k);
  ops_.push_back(std::move(draft_op));
}

}  // namespace infeng
