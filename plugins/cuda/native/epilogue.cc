// epilogue: a list of steps in as few launches as it takes. A launch applies segments of adapters, then steps that
// change values by themselves, then writes and rounds the result.
#include "../kernels/epilogue.h"

#include <cstddef>

#include "rounding.h"

namespace infeng_cuda {
namespace {

static_assert(kF32 == INFENG_F32 && kBf16 == INFENG_BF16 && kInt8 == INFENG_I8);
constexpr uint32_t kFuses =
    kFusedSteps | INFENG_EPILOGUE_BIT(INFENG_EPILOGUE_LORA) | INFENG_EPILOGUE_BIT(INFENG_EPILOGUE_QUANTIZE);
constexpr int64_t kRowsAtOnce = 64;      // from so many rows on, a block makes and rounds all of a row
constexpr int64_t kRoundColumns = 1024;  // of a block that rounds groups
constexpr int64_t kWriteColumns = 256;   // of a block that does not round
constexpr unsigned kWriteThreads = 64;
constexpr int64_t kMostBetween = 32 << 20;  // bytes between two launches

// What one launch, or two, take from a list.
struct Stage {
  const infeng_lora_epilogue* lora = nullptr;
  int32_t part = 0, parts = 0;    // its segments
  uint32_t first = 0, count = 0;  // steps that change values by themselves
  const infeng_epilogue* rounding = nullptr;
  bool is_gated = false;
};

// Walks over a list.
class Stages {
 public:
  explicit Stages(const infeng_args& args) : args_(args) {}

  bool is_done() const { return next_ >= args_.epilogue_count; }

  Stage next() {
    Stage stage;
    if (is(INFENG_EPILOGUE_LORA)) {
      stage.lora = &reinterpret_cast<const infeng_lora_epilogue&>(*args_.epilogues[next_]);
      stage.part = part_;
      stage.parts = std::min(stage.lora->segment_count - part_, EpilogueMany::kMost);
      part_ += stage.parts;
      if (part_ < stage.lora->segment_count) return stage;
      part_ = 0;
      ++next_;
    }
    stage.first = next_;
    for (; !is_done() && stage.count < kMostSteps; ++stage.count, ++next_) {
      if (is(INFENG_EPILOGUE_LORA) || is(INFENG_EPILOGUE_QUANTIZE)) break;
      if (is(INFENG_EPILOGUE_GATED_MUL)) stage.is_gated = true;
    }
    if (is(INFENG_EPILOGUE_QUANTIZE)) stage.rounding = args_.epilogues[next_++];
    return stage;
  }

 private:
  bool is(uint32_t kind) const { return !is_done() && args_.epilogues[next_]->kind == kind; }

  const infeng_args& args_;
  uint32_t next_ = 0;
  int32_t part_ = 0;
};

// The segments of a stage; false if they are not sorted.
bool flatten_parts(const Stage& stage, LoraPart* out) {
  const auto* const bytes = reinterpret_cast<const std::byte*>(stage.lora->segments);
  for (int32_t i = 0; i < stage.parts; ++i) {
    const auto& s = *reinterpret_cast<const infeng_lora_segment*>(bytes + static_cast<size_t>(stage.part + i) *
                                                                              stage.lora->segment_stride);
    out[i] = {s.row_begin,  s.row_end,     0,   s.rank,    s.dtype,     s.u_column, s.panel_begin,
              s.panel_step, s.panel_count, s.b, s.b_scale, s.row_scale, s.bias};
    if (s.panel_step == 0) out[i].panel_step = 1;  // of one panel
    if (i == 0) continue;
    if (out[i].row_begin < out[i - 1].row_begin) return false;
    int32_t first = out[i - 1].first;
    while (first < i && out[first].row_end <= out[i].row_begin) ++first;
    out[i].first = first;
  }
  return true;
}

// One call of the op.
class Call {
 public:
  Call(const infeng_epilogue_args& args, infeng_worker* worker) : args_(args), worker_(worker) {}

  infeng_status run() {
    int stages = 0;
    for (Stages walk(args_.common); !walk.is_done(); ++stages) walk.next();
    is_single_ = stages <= 1;
    from_ = matrix_of(args_.in);
    columns_ = from_.columns;
    const Matrix out = matrix_of(args_.out);
    Stages walk(args_.common);
    do {
      const Stage stage = walk.next();
      const Matrix* const to = walk.is_done() ? &out : nullptr;
      const infeng_status status =
          stage.parts <= EpilogueFew::kMost ? run_with<EpilogueFew>(stage, to) : run_with<EpilogueMany>(stage, to);
      if (status != INFENG_OK) return status;
    } while (!walk.is_done());
    return INFENG_OK;
  }

 private:
  // The result goes to `out`, or to memory between two stages.
  template <class Params>
  infeng_status run_with(const Stage& stage, const Matrix* out) {
    Params p;
    p.in = from_;
    const int64_t halves = stage.is_gated ? 2 : 1;
    p.columns = static_cast<int32_t>(ceil_div(from_.columns, 16) * 16 / halves);
    columns_ /= halves;
    infeng_args list = args_.common;
    list.epilogues += list.epilogues == nullptr ? 0 : stage.first;
    list.epilogue_count = stage.count;
    if (!flatten_steps(&list, &p.steps)) return fail(worker_, INFENG_UNIMPLEMENTED, "epilogue: an unknown step");
    p.count = stage.parts;
    if (stage.lora != nullptr) {
      const Matrix u = matrix_of(stage.lora->u);
      p.u = u.data;
      p.u_stride = u.stride;
      if (!flatten_parts(stage, p.parts)) return fail(worker_, INFENG_INVALID_ARGUMENT, "segments are not sorted");
    }
    if (stage.rounding != nullptr) p.rounding = rounding_of(*stage.rounding, p.columns, columns_);
    // A result that is half as wide as what it replaces.
    const bool replaces = out != nullptr && stage.is_gated && out->data == from_.data;
    if (p.rounding.q == nullptr && !replaces) {
      if (!between(p, out, 0, rows())) return INFENG_OUT_OF_RANGE;
      from_ = p.out;
      return write(p, rows());
    }
    const bool makes = stage.count > 0 || stage.parts > 0;
    if (!makes || (p.columns <= kMostHeld && (stage.parts == 0 || rows() >= kRowsAtOnce))) {
      p.way = makes ? Way::hold : Way::read;
      if ((makes || out != nullptr) && !between(p, out, 0, rows())) return INFENG_OUT_OF_RANGE;
      from_ = p.out.data == nullptr ? p.in : p.out;
      return finish(p, replaces, rows());
    }
    return write_and_finish(p, out, replaces);
  }

  // Where a row does not fit in a block's memory, or where few blocks would read the adapters: blocks of few columns
  // make what is then rounded, some rows at a time, so that they stay in the device's cache.
  template <class Params>
  infeng_status write_and_finish(Params& p, const Matrix* out, bool replaces) {
    const Rounding rounding = p.rounding;
    const Steps steps = p.steps;
    const int32_t count = p.count;
    const int64_t most = is_single_ ? std::max<int64_t>(kMostBetween / 4 / p.columns, 1) : rows();
    for (int64_t row = 0; row < rows(); row += most) {
      const int64_t some = std::min(most, rows() - row);
      p.row0 = row;
      p.in = from_;
      p.steps = steps;
      p.count = count;
      p.rounding = {};
      p.way = Way::write;
      if (!between(p, nullptr, row, some)) return INFENG_OUT_OF_RANGE;
      if (const infeng_status status = write(p, some)) return status;
      p.in = p.out;
      p.steps = {};
      p.count = 0;
      p.rounding = rounding;
      p.way = Way::read;
      p.out = out == nullptr ? Matrix{} : *out;
      if (const infeng_status status = finish(p, replaces, some)) return status;
    }
    from_ = p.in;
    return INFENG_OK;
  }

  template <class Params>
  infeng_status write(Params& p, int64_t rows) {
    p.span = kWriteColumns;
    const int64_t blocks = p.out.data == nullptr ? 0 : ceil_div(p.columns, kWriteColumns);
    return launch(entry<Params>(), {rows, blocks}, kWriteThreads, p, worker_);
  }

  template <class Params>
  infeng_status finish(Params& p, bool replaces, int64_t rows) {
    const bool is_whole = replaces || p.rounding.group == 0;
    const int64_t span = is_whole ? p.columns : std::min<int64_t>(p.columns, kRoundColumns);
    p.span = static_cast<int32_t>(ceil_div(span, kWarpColumns) * kWarpColumns);
    return launch(entry<Params>(), {rows, ceil_div(p.columns, p.span)}, round_threads(p.span), p, worker_,
                  p.way == Way::hold ? p.span * 4 : 0);
  }

  template <class Params>
  static Entry& entry() {
    static Entry only{Params::kMost == EpilogueFew::kMost ? "epilogue_few" : "epilogue_many"};
    return only;
  }

  // Sets the result's matrix: `out`, or scratch memory for rows [row, row + rows). Of several stages it has two halves,
  // which take turns.
  template <class Params>
  bool between(Params& p, const Matrix* out, int64_t row, int64_t rows) {
    if (out != nullptr) {
      p.out = *out;
      return true;
    }
    const int64_t floats = rows * (is_single_ ? p.columns : ceil_div(args_.in.shape[1], 16) * 16);
    auto* memory = static_cast<float*>(scratch((is_single_ ? 4 : 8) * floats, worker_));
    if (memory == nullptr) return false;
    if (!is_single_ && is_second_) memory += floats;
    is_second_ = !is_second_;
    p.out = {memory - row * p.columns, p.columns, p.columns};
    return true;
  }

  int64_t rows() const { return args_.common.rows; }

  const infeng_epilogue_args& args_;
  infeng_worker* worker_;
  Matrix from_;          // what the next stage reads
  int64_t columns_ = 0;  // of it, without padding
  bool is_single_ = true;
  bool is_second_ = false;
};

infeng_status run(const infeng_args* common, int32_t, int64_t, int64_t, infeng_worker* worker) {
  if (common->rows == 0) return INFENG_OK;
  return Call(*reinterpret_cast<const infeng_epilogue_args*>(common), worker).run();
}

int32_t accepts(const infeng_problem* p) {
  for (uint32_t i = 0; i < p->epilogue_count; ++i) {
    const uint32_t kind = p->epilogues[i]->kind;
    if (kind > 31 || (kFuses & INFENG_EPILOGUE_BIT(kind)) == 0) return 0;
  }
  return p->op == INFENG_OP_EPILOGUE;
}

}  // namespace

extern "C" const infeng_kernel cuda_epilogue =
    whole_kernel(INFENG_OP_EPILOGUE, "epilogue", kFuses,
                 kFunctions | kHandlesRoundings | INFENG_NEED_BIT(INFENG_NEED_LORA_F32) |
                     INFENG_NEED_BIT(INFENG_NEED_LORA_BF16) | INFENG_NEED_BIT(INFENG_NEED_LORA_I8),
                 accepts, run);

}  // namespace infeng_cuda
