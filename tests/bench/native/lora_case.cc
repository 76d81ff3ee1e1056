#include "lora_case.h"

#include <infeng/extension/error.h>
#include <infeng/ops/tensor.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "program/layout.h"
#include "vocabulary/names.h"

namespace infeng_bench {
namespace {

using namespace infeng;

constexpr uint32_t kFormat = INFENG_WEIGHT_INT4_G64;
constexpr uint16_t kHalfScale = 0x211F;   // about 0.01
constexpr uint16_t kBrainScale = 0x3A83;  // about 0.001

infeng_tensor matrix(void* data, int32_t dtype, int64_t rows, int64_t columns) {
  return infeng_matrix(data, dtype, rows, columns, columns);
}

// Random nibbles; a line of two groups' scales stands before every 128 inputs.
void fill_int4(uint8_t* data, int64_t panels, int64_t panel_bytes, std::mt19937_64& random) {
  constexpr int64_t kBlock = 64 + 16 * 64;
  std::generate_n(reinterpret_cast<uint64_t*>(data), panels * panel_bytes / 8, [&] { return random(); });
  for (int64_t p = 0; p < panels; ++p) {
    for (int64_t at = 0; at < panel_bytes; at += kBlock)
      std::fill_n(reinterpret_cast<uint16_t*>(data + p * panel_bytes + at), 32, kHalfScale);
  }
}

// A value that is a small number in every type of storage: bf16 0x3C3C is about 0.011.
void fill_adapter(uint8_t* data, int64_t bytes) { std::memset(data, 0x3C, static_cast<size_t>(bytes)); }

int64_t u_columns(const Setting& s) {
  return round_up(s.rank * static_cast<int64_t>(s.shape.projections.size()), kPanel);
}

uint32_t adapter_format(uint32_t dtype) { return dtype == INFENG_I8 ? INFENG_WEIGHT_INT8_ROW : INFENG_WEIGHT_BF16; }

}  // namespace

const std::vector<Shape>& shapes() {
  static const std::vector<Shape> all = {
      {"qkv_proj", 2560, 2048, {{0, 1, 128}, {128, 1, 16}, {144, 1, 16}}},
      {"o_proj", 2048, 2048, {{0, 1, 128}}},
      {"gate_up_proj", 11264, 2048, {{0, 2, 352}, {1, 2, 352}}},
      {"down_proj", 2048, 5632, {{0, 1, 128}}},
  };
  return all;
}

Case::Case(const Libraries& libraries, const Setting& setting, int64_t footprint) : setting_(setting) {
  const Shape& shape = setting_.shape;
  const bool adapted = setting_.way != Way::base;
  infeng_problem problem{};
  problem.struct_size = sizeof problem;
  const infeng_epilogue lora{sizeof lora, INFENG_EPILOGUE_LORA, nullptr, 0, 0, 0, 0};
  const infeng_epilogue* const list[] = {&lora};
  const auto add_lora = [&](infeng_problem& p) {
    p.epilogues = list;
    p.epilogue_count = 1;
    p.needs = INFENG_NEED_BIT(setting_.dtype == INFENG_I8 ? INFENG_NEED_LORA_I8 : INFENG_NEED_LORA_BF16);
  };
  problem.rows_min = problem.rows_max = setting_.rows;
  problem.n = shape.n;
  problem.k = shape.k;
  problem.workers = 1;

  infeng_problem linear = problem;
  linear.op = INFENG_OP_LINEAR;
  linear.weight_format = kFormat;
  linear.act_format = INFENG_ACT_INT8_G64;
  if (setting_.way == Way::fused) add_lora(linear);
  bind(linear_, libraries, linear);
  if (adapted) {
    infeng_problem shrink = problem;
    shrink.op = INFENG_OP_SHRINK;
    shrink.n = u_columns(setting_);
    shrink.weight_format = adapter_format(setting_.dtype);
    shrink.act_format = activation_of(shrink.weight_format);
    bind(shrink_, libraries, shrink);
  }
  if (setting_.way == Way::unfused) {
    infeng_problem expand = problem;
    expand.op = INFENG_OP_EPILOGUE;
    expand.k = shape.n;
    add_lora(expand);
    bind(epilogue_, libraries, expand);
  }
  make_inputs();
  const int64_t bytes = shape.n / kPanel * panel_bytes_of(kFormat, shape.k);
  const int64_t copies = std::max<int64_t>(1, footprint / bytes);
  const auto weights = std::make_shared<Arena>(copies * bytes);
  std::mt19937_64 random(1);
  fill_int4(reinterpret_cast<uint8_t*>(weights->data()), copies * (shape.n / kPanel), panel_bytes_of(kFormat, shape.k),
            random);
  for (int64_t i = 0; i < copies; ++i) copies_.push_back(make_copy(weights, i));
}

int64_t Case::weight_bytes() const {
  const infeng_weight& weight = copies_[0].weight->abi;
  return weight.panels * weight.panel_bytes;
}

int64_t Case::adapter_bytes() const { return copies_[0].adapters.bytes; }

void Case::bind(std::unique_ptr<Call>& call, const Libraries& libraries, infeng_problem problem) {
  std::shared_ptr<const Kernel> best;
  for (const auto& library : libraries) {
    for (const auto& kernel : library->kernels) {
      if (kernel->abi.op == problem.op && kernel->accepts(problem) &&
          (!best || kernel->abi.priority > best->abi.priority))
        best = kernel;
    }
    if (best) break;
  }
  if (!best) {
    std::string fused;
    if (problem.epilogue_count > 0) fused = " with lora";
    fail("no_kernel", "no library has a kernel for ", name_of(Vocabulary::op, problem.op), " of ",
         name_of(Vocabulary::weight, problem.weight_format), fused, " at ", problem.rows_max, " rows");
  }
  const infeng_workspace space = best->workspace(problem);
  call = std::make_unique<Call>();
  call->kernel = best;
  const int64_t align = std::max<int64_t>(space.align, kLine);
  call->worker = {sizeof(infeng_worker),
                  0,
                  1,
                  sizeof call->message,
                  memory_.take(std::max<int64_t>(space.shared, kLine), align),
                  memory_.take(std::max<int64_t>(space.per_worker, kLine), align),
                  call->message};
}

void Case::make_inputs() {
  const int64_t rows = setting_.rows, k = setting_.shape.k, groups = k / kGroup;
  std::mt19937 random(2);
  auto* x = memory_.take_array<float>(rows * k);
  auto* q = memory_.take_array<int8_t>(rows * k);
  auto* scale = memory_.take_array<float>(rows * groups);
  auto* sum = memory_.take_array<int32_t>(rows * groups);
  for (int64_t i = 0; i < rows * k; ++i) {
    q[i] = static_cast<int8_t>(random() % 255 - 127);
    x[i] = static_cast<float>(q[i]) * 0.01f;
    sum[i / kGroup] += q[i];
  }
  std::fill_n(scale, rows * groups, 0.01f);
  in_ = {sizeof(infeng_activation),
         kGroup,
         matrix(x, INFENG_F32, rows, k),
         matrix(q, INFENG_I8, rows, k),
         matrix(scale, INFENG_F32, rows, groups),
         matrix(sum, INFENG_I32, rows, groups)};
  out_ = matrix(memory_.take_array<float>(rows * setting_.shape.n), INFENG_F32, rows, setting_.shape.n);
  const int64_t columns = std::max(u_columns(setting_), kPanel);
  u_ = matrix(memory_.take_array<float>(rows * columns), INFENG_F32, rows, columns);
}

Case::Copy Case::make_copy(const std::shared_ptr<Arena>& weights, int64_t index) {
  const Shape& shape = setting_.shape;
  const int64_t panels = shape.n / kPanel, panel_bytes = panel_bytes_of(kFormat, shape.k);
  const int64_t bytes = panels * panel_bytes;
  Copy copy{};
  copy.weight = in_layout_of(*linear_->kernel, make_weight(kFormat, shape.n, shape.k, panels, panel_bytes,
                                                           weights->data() + index * bytes, bytes, weights));
  if (setting_.way == Way::base) return copy;
  const auto rank = static_cast<int32_t>(setting_.rank);
  const auto stacked = setting_.rank * static_cast<int64_t>(shape.projections.size());
  const int64_t a_bytes = stacked_bytes_of(adapter_format(setting_.dtype), stacked, shape.k);
  const int64_t b_bytes = shape.n * rank * (setting_.dtype == INFENG_I8 ? 1 : 2);
  auto* scaling = memory_.take_array<float>(u_columns(setting_));
  std::fill_n(scaling, stacked, 2.0f);
  auto* b_scale = memory_.take_array<uint16_t>(shape.n);
  std::fill_n(b_scale, shape.n, kBrainScale);
  copy.adapters = {memory_.take(setting_.adapters * (a_bytes + b_bytes)), setting_.adapters * (a_bytes + b_bytes)};
  for (int64_t adapter = 0; adapter < setting_.adapters; ++adapter) {
    auto* a = static_cast<uint8_t*>(const_cast<void*>(copy.adapters.data)) + adapter * (a_bytes + b_bytes);
    fill_adapter(a, a_bytes + b_bytes);
    infeng_lora_segment segment{};
    segment.row_begin = static_cast<int32_t>(setting_.rows * adapter / setting_.adapters);
    segment.row_end = static_cast<int32_t>(setting_.rows * (adapter + 1) / setting_.adapters);
    segment.dtype = setting_.dtype;
    segment.weight = 1.0f;
    segment.rank = static_cast<int32_t>(stacked);
    segment.a = a;
    segment.scaling = scaling;
    copy.shrink.push_back(segment);
    segment.rank = rank;
    const uint8_t* b = a + a_bytes;
    const uint16_t* b_scales = b_scale;
    for (const Projection& projection : shape.projections) {
      segment.panel_begin = projection.begin;
      segment.panel_step = projection.step;
      segment.panel_count = projection.panels;
      segment.b = b;
      segment.b_scale = setting_.dtype == INFENG_I8 ? b_scales : nullptr;
      copy.expand.push_back(segment);
      segment.u_column += rank;
      b += b_bytes * projection.panels / panels;
      b_scales += projection.panels * kPanel;
    }
  }
  return copy;
}

void Case::run() {
  const Copy& copy = copies_[next_];
  next_ = (next_ + 1) % copies_.size();
  infeng_lora_epilogue expand{};
  expand.head.struct_size = sizeof expand;
  expand.head.kind = INFENG_EPILOGUE_LORA;
  expand.u = u_;
  expand.segments = copy.expand.data();
  expand.segment_count = static_cast<int32_t>(copy.expand.size());
  expand.segment_stride = sizeof(infeng_lora_segment);
  const infeng_epilogue* const list[] = {&expand.head};
  // As in a model: while this weight streams, what the next linear's adapters need may be fetched.
  const infeng_fetch fetch{{sizeof(infeng_fetch), INFENG_EXTENSION_FETCH, nullptr}, &copies_[next_].adapters, 1};

  infeng_linear_args linear{};
  linear.common.struct_size = sizeof linear;
  linear.common.rows = setting_.rows;
  linear.in = &in_;
  linear.weight = &copy.weight->abi;
  linear.out = out_;
  infeng_shrink_args shrink{};
  shrink.common.struct_size = sizeof shrink;
  shrink.common.rows = setting_.rows;
  shrink.in = &in_;
  shrink.u = u_;
  shrink.segments = copy.shrink.data();
  shrink.segment_count = static_cast<int32_t>(copy.shrink.size());
  shrink.segment_stride = sizeof(infeng_lora_segment);

  switch (setting_.way) {
    case Way::base:
      invoke(*linear_, linear.common);
      break;
    case Way::fused:
      linear.common.next = &fetch.head;
      linear.common.epilogues = list;
      linear.common.epilogue_count = 1;
      invoke(*shrink_, shrink.common);
      invoke(*linear_, linear.common);
      break;
    case Way::unfused:
      infeng_epilogue_args add{};
      add.common = {sizeof add, 1, nullptr, list, setting_.rows, nullptr};
      add.in = add.out = out_;
      invoke(*linear_, linear.common);
      invoke(*shrink_, shrink.common);
      invoke(*epilogue_, add.common);
      break;
  }
}

void Case::invoke(Call& call, const infeng_args& args) {
  const infeng_kernel& kernel = call.kernel->abi;
  const int32_t phases = kernel.phases ? kernel.phases(&args) : 1;
  for (int32_t phase = 0; phase < phases; ++phase) {
    const infeng_status status = kernel.run(&args, phase, 0, kernel.tiles(&args, phase), &call.worker);
    if (status != INFENG_OK)
      fail(status_code(status), call.kernel->full_name(), ": ", static_cast<const char*>(call.message));
  }
}

}  // namespace infeng_bench
