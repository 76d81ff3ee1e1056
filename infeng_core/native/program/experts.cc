#include "program/experts.h"

#include <algorithm>

#include "program/program.h"

namespace infeng {
namespace {

// Narrows the tensor to rows [begin, begin + count).
void cut(infeng_tensor& tensor, int64_t begin, int64_t count) {
  if (tensor.data == nullptr) return;
  tensor.data = static_cast<char*>(tensor.data) + begin * tensor.strides[0] * dtype_bytes(tensor.dtype);
  tensor.shape[0] = count;
}

void cut(infeng_activation& activation, int64_t begin, int64_t count) {
  for (infeng_tensor* t : {&activation.x, &activation.q, &activation.scale, &activation.sum}) cut(*t, begin, count);
}

}  // namespace

int64_t Routing::used() const {
  int64_t count = 0;
  for (int64_t e = 0; e < experts; ++e) count += rows_of(e) > 0 ? 1 : 0;
  return count;
}

void ExpertCalls::reserve(int64_t experts, int64_t copies) {
  rows_.resize(std::max(rows_.size(), static_cast<size_t>(copies)));
  const auto wanted = static_cast<size_t>(experts);
  if (room_ >= wanted) return;
  calls_ = std::make_unique<ExpertCall[]>(wanted);
  room_ = wanted;
}

// Fills `rows_`; false if the places are not a permutation of the copies, sorted by expert and then by row.
bool ExpertCalls::sort_rows(const Routing& routing, int64_t rows) {
  const int64_t copies = rows * routing.top_k;
  std::fill_n(rows_.begin(), copies, -1);
  for (int64_t i = 0; i < copies; ++i) {
    const int64_t place = routing.for_host.places[i];
    if (place < 0 || place >= copies) return false;
    rows_[static_cast<size_t>(place)] = static_cast<int32_t>(i / routing.top_k);
  }
  for (int64_t e = 0; e < routing.experts; ++e) {
    for (int64_t i = routing.for_host.begin[e]; i < routing.for_host.begin[e + 1]; ++i) {
      const int32_t before = i == routing.for_host.begin[e] ? -1 : rows_[static_cast<size_t>(i - 1)];
      if (rows_[static_cast<size_t>(i)] <= before) return false;
    }
  }
  return true;
}

void ExpertCalls::fill(ExpertCall& call, const Op& op, int64_t expert, Lora& lora) const {
  const Routing& routing = *op.routing;
  const int64_t begin = routing.for_host.begin[expert], count = routing.rows_of(expert);
  const Binding& binding = op.binding_of(count);
  call.kernel = binding.kernel.get();
  call.in = op.in;
  cut(call.in, begin, count);
  if (op.problem.op != INFENG_OP_SHRINK) {
    fill_linear(call, op, expert, lora);
  } else {
    const auto segments =
        lora.of_expert(op.lora_slot, expert, {&rows_[static_cast<size_t>(begin)], size_t(count)}, true);
    call.shrink = op.args.shrink;
    call.shrink.in = &call.in;
    call.shrink.segments = segments.data();
    call.shrink.segment_count = static_cast<int32_t>(segments.size());
    cut(call.shrink.u, begin, count);
  }
  call.common.rows = count;
  call.common.instance = binding.instance.get();
}

void ExpertCalls::fill_linear(ExpertCall& call, const Op& op, int64_t expert, Lora& lora) const {
  const Routing& routing = *op.routing;
  const int64_t begin = routing.for_host.begin[expert], count = routing.rows_of(expert);
  const Binding& binding = op.binding_of(count);
  call.weight = binding.weight->abi;
  call.weight.panels /= routing.experts;
  call.weight.n = call.weight.panels * kPanel;
  if (op.mixture != nullptr && !op.on_host) {
    call.weight.data = op.mixture->weight(expert, op.linear);
  } else {
    call.weight.data =
        static_cast<const char*>(call.weight.data) + expert * call.weight.panels * call.weight.panel_bytes;
  }
  call.args = op.args.linear;
  call.args.common.epilogues = call.list;
  call.args.in = &call.in;
  call.args.weight = &call.weight;
  cut(call.args.out, begin, count);
  std::copy(op.list.begin(), op.list.end(), call.list);
  for (size_t i = 0; i < op.list.size(); ++i) {
    switch (op.list[i]->kind) {
      case INFENG_EPILOGUE_BIAS: {
        call.bias = op.steps[i].operand;
        infeng_tensor& all = call.bias.operand;
        all.shape[0] /= routing.experts;
        all.data = static_cast<float*>(all.data) + expert * all.shape[0];
        call.list[i] = &call.bias.head;
        break;
      }
      case INFENG_EPILOGUE_LORA:
        call.lora = op.steps[i].lora;
        call.lora.segment_count = 0;
        cut(call.lora.u, begin, count);
        if (has_adapters_) {
          const auto segments =
              lora.of_expert(op.lora_slot, expert, {&rows_[static_cast<size_t>(begin)], size_t(count)}, false);
          call.lora.segments = segments.data();
          call.lora.segment_count = static_cast<int32_t>(segments.size());
        }
        call.list[i] = &call.lora.head;
        break;
      case INFENG_EPILOGUE_QUANTIZE:
        call.quantize = op.steps[i].quantize;
        call.act = op.steps[i].act;
        cut(call.act, begin, count);
        call.quantize.act = &call.act;
        call.list[i] = &call.quantize.head;
        break;
      default:
        break;
    }
  }
}

bool ExpertCalls::make(Op& op, int64_t rows, Lora& lora) {
  const Routing& routing = *op.routing;
  used_ = 0;
  op.use(op.bindings.front());
  int64_t tiles = 0, most = 0;
  if (routing.for_host.begin[0] != 0 || routing.for_host.begin[routing.experts] != rows * routing.top_k) return false;
  for (int64_t e = 0; e < routing.experts; ++e) {
    if (routing.rows_of(e) < 0 || routing.rows_of(e) > rows) return false;
  }
  has_adapters_ = lora.is_used(op.lora_slot);
  if (has_adapters_ && !sort_rows(routing, rows)) return false;
  lora.begin_experts();
  for (int64_t e = 0; e < routing.experts; ++e) {
    const int64_t count = routing.rows_of(e);
    if (count == 0 || (op.mixture != nullptr && op.mixture->is_on_host(e) != op.on_host)) continue;
    ExpertCall& call = calls_[used_++];
    fill(call, op, e, lora);
    call.first = tiles;
    tiles += call.kernel->abi.tiles(&call.common, 0);
    call.last = tiles;
    if (count <= most) continue;
    most = count;
    op.use(op.binding_of(count));  // profiles and errors name the kernel of the largest call
  }
  return true;
}

infeng_status ExpertCalls::run(int64_t first, int64_t last, infeng_worker* worker) const {
  const ExpertCall* const end = calls_.get() + used_;
  const ExpertCall* call = std::upper_bound(calls_.get(), calls_.get() + used_, first,
                                            [](int64_t tile, const ExpertCall& each) { return tile < each.last; });
  for (; call != end && call->first < last; ++call) {
    if (call->first == call->last) continue;
    const int64_t from = std::max(first, call->first) - call->first;
    const infeng_status status =
        call->kernel->abi.run(&call->common, 0, from, std::min(last, call->last) - call->first, worker);
    if (status != INFENG_OK) return status;
  }
  return INFENG_OK;
}

}  // namespace infeng
