// Values and scratch memory of a program; ops.cc adds the ops, batch.cc takes a step's arrays.
#include "program/program.h"

#include <infeng/extension/error.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "program/layout.h"
#include "vocabulary/names.h"

namespace infeng {
namespace {

constexpr int64_t kMostRows = int64_t{1} << 24;
constexpr int64_t kMostColumns = int64_t{1} << 28;
constexpr char kGuard = 0x5a;

void check_limit(const char* what, int64_t value, int64_t least) {
  if (value < least || value > kMostRows) {
    fail(kBad, what, " is ", least, " to ", kMostRows, ", not ", value);
  }
}

}  // namespace

Program::Program(std::shared_ptr<Pool> pool, const Limits& limits, Pages pages, DevicePtr device)
    : pool_(std::move(pool)),
      limits_(limits),
      pages_(std::move(pages)),
      device_(std::move(device)),
      device_memory_(device_),
      values_memory_(device_ == nullptr ? memory_ : device_memory_) {
  check_limit("max_rows", limits.rows, 1);
  check_limit("max_samples", limits.samples, 0);
  check_limit("max_segments", limits.segments, 1);
  check_limit("context", limits.context, 1);
  check_limit("tables", limits.tables, 1);
  if (limits.samples > limits.rows) {
    fail(kBad, "max_samples ", limits.samples, " is more than max_rows ", limits.rows);
  }
  positions_limit_ = limits.context;
  table_stride_ = round_up(limits.context, kBlockTokens * kPanel) / kBlockTokens;
  // One behind the other, in one piece, so that one copy takes all that is in use to a device.
  const int64_t each = round_up(limits.rows, kPanel), samples = round_up(limits.samples, kPanel);
  const int64_t all = 2 * each + samples + limits.tables * limits.segments * table_stride_;
  tokens_ = memory_.take_array<int32_t>(all);
  positions_ = tokens_ + each;
  sample_rows_ = positions_ + each;
  tables_ = sample_rows_ + samples;
  arrays_.host = reinterpret_cast<std::byte*>(tokens_);
  if (device_ != nullptr) arrays_.device = reinterpret_cast<std::byte*>(device_memory_.take_array<int32_t>(all));
  segments_ = memory_.take_array<infeng_kv_segment>(limits.tables * limits.segments);
  sights_.resize(static_cast<size_t>(limits.tables));
}

int Program::buffer(int64_t columns, bool samples, int64_t copies, bool on_host) {
  return add_value(columns, samples, false, copies, on_host);
}

int Program::activation(int64_t columns, bool samples, int64_t copies, int64_t group, int64_t rotated, bool on_host) {
  const bool is_row = group == INFENG_GROUP_ROW;
  if (group != 64 && group != 128 && group != 256 && !is_row) {
    fail(kBad, "an activation with a scale for each ", group, " inputs is not possible");
  }
  if (is_row && columns > INFENG_MOST_ROW_INPUTS) {
    fail(kBad, "a row of ", columns, " inputs with one scale is not possible: at most ", INFENG_MOST_ROW_INPUTS,
         ", whose products fit in 32 bits");
  }
  if (rotated != 0 && rotated != 64 && !(is_row && (rotated == 128 || rotated == 256))) {
    fail(kBad, "an activation with this group is not rotated in blocks of ", rotated, " inputs");
  }
  if (rotated != 0 && columns % rotated != 0) {
    fail(kBad, "an activation of ", columns, " inputs is not rotated: they are no multiple of ", rotated);
  }
  const int made = add_value(columns, samples, true, copies, on_host);
  values_.back().group = group;
  values_.back().rotated = rotated;
  return made;
}

int Program::add_value(int64_t columns, bool samples, bool quantized, int64_t copies, bool on_host) {
  if (finished_) fail("finished", "the program is finished: declare buffers before finish()");
  if (columns < 1 || columns > kMostColumns) {
    fail(kBad, "a buffer of ", columns, " columns is not possible");
  }
  if (copies < 1 || copies > INFENG_MOST_CHOSEN || (samples && copies != 1)) {
    fail(kBad, "a buffer of ", copies, " copies of a row is not possible");
  }
  if (on_host && !split_) fail(kBad, "a value on the host: the program is not split between it and a device");
  Bump& memory = on_host ? memory_ : values_memory_;
  Value value;
  value.quantized = quantized;
  value.samples = samples;
  value.copies = copies;
  value.on_host = on_host;
  value.rows = samples ? limits_.samples : limits_.rows * copies;
  value.columns = columns;
  value.stride = round_up(columns, kGroup);
  if (quantized) {
    value.groups = value.stride / kGroup;
    value.group_stride = round_up(value.groups, kLine / 4);
    // The stride is an odd number of lines: at powers of two, rows would compete for a few sets of the caches.
    value.q_stride = value.stride / kLine % 2 == 0 ? value.stride + kLine : value.stride;
    value.q = memory.take_array<int8_t>(value.rows * value.q_stride);
    value.scale = memory.take_array<float>(value.rows * value.group_stride);
    value.sum = memory.take_array<int32_t>(value.rows * value.group_stride);
  } else {
    value.x = memory.take_array<float>(value.rows * value.stride);
  }
  values_.push_back(value);
  return static_cast<int>(values_.size()) - 1;
}

const Value& Program::value(int id) const {
  if (id < 0 || static_cast<size_t>(id) >= values_.size()) {
    fail(kBad, "there is no buffer ", id, "; the program has ", values_.size());
  }
  return values_[static_cast<size_t>(id)];
}

void* Program::shadow(void* array, void* host, int64_t nbytes, bool fetched) {
  if (device_ == nullptr) return array;
  for (Shadow& known : shadows_) {
    if (known.device != array) continue;
    known.fetched = known.fetched && fetched;
    return known.host;
  }
  if (host == nullptr) host = memory_.take(nbytes);
  shadows_.push_back({array, host, nbytes, fetched});
  return host;
}

void Program::fetch(int id, int64_t rows) {
  if (device_ == nullptr) return;
  const Value& from = value(id);
  const int64_t count = std::min(rows, from.rows) * from.stride;
  float* const host = seen(from.x, from.rows * from.stride, true);
  device_->download(host, from.x, count * static_cast<int64_t>(sizeof(float)));
}

void Program::show_routing(int id) {
  const Routing& routing = routing_of(id);
  const auto& [chosen, weights, places, begin] = routing.for_host;
  const int64_t copies = limits_.rows * routing.top_k * 4;
  shadow(routing.for_kernels.chosen, chosen, copies, false);
  shadow(routing.for_kernels.weights, weights, copies, false);
  shadow(routing.for_kernels.places, places, copies, false);
  shadow(routing.for_kernels.begin, begin, (routing.experts + 1) * 4, false);
}

void Program::finish() {
  if (finished_) fail("finished", "finish() was called before");
  if (ops_.empty()) fail(kBad, "the program has no ops");
  infeng_workspace most{sizeof(infeng_workspace), 64, 0, 0};
  for (const auto& op : ops_) bind_kernels(*op, most);
  reserve_experts();
  lora_.finish(ops_);
  const Op* upcoming = nullptr;
  for (auto op = ops_.rbegin(); op != ops_.rend(); ++op) {
    (*op)->upcoming = upcoming;
    if ((*op)->problem.op != INFENG_OP_LINEAR || device_ != nullptr) continue;
    if ((*op)->branch == Branch::with_adapters) continue;  // its form without them, which comes before, has the weight
    upcoming = (*op)->routing == nullptr ? op->get() : nullptr;  // which experts a step needs is not known in advance
  }

  const auto threads = pool_->threads();
  auto* shared = take_scratch(most.shared, most.align);
  seats_ = memory_.take_array<Seat>(threads);
  for (int i = 0; i < threads; ++i) {
    Seat& seat = seats_[i];
    seat.worker = {sizeof(infeng_worker),
                   i,
                   threads,
                   static_cast<int32_t>(sizeof seat.message),
                   shared,
                   take_scratch(most.per_worker, most.align),
                   seat.message,
                   nullptr};
  }
  shares_.resize(threads);
  block_step_ = memory_.take_array<uint32_t>(blocks_limit_);
  finished_ = true;
}

void* Program::take_scratch(int64_t nbytes, int64_t align) {
  auto* data = static_cast<char*>(memory_.take(nbytes + kLine, align));
  guards_.push_back(data + nbytes);
  std::memset(data + nbytes, kGuard, kLine);
  return data;
}

const float* Program::copy_constant(const float* values, int64_t count, bool on_host) {
  float* const copy = (on_host ? memory_ : values_memory_).take_array<float>(count);
  const int64_t nbytes = count * static_cast<int64_t>(sizeof(float));
  if (device_ != nullptr && !on_host) {
    device_->upload(copy, values, nbytes);
  } else {
    std::memcpy(copy, values, static_cast<size_t>(nbytes));
  }
  return copy;
}

bool Program::scratch_is_intact() const {
  return std::all_of(guards_.begin(), guards_.end(), [](const char* guard) {
    return std::all_of(guard, guard + kLine, [](char byte) { return byte == kGuard; });
  });
}

void Program::profile(bool on, int64_t events, std::vector<int> groups) {
  constexpr int64_t kMostEvents = int64_t{1} << 24;
  if (!finished_) fail("not_finished", "call finish() before profile()");
  if (events < 0 || events > kMostEvents) fail(kBad, "events is 0 to ", kMostEvents, ", not ", events);
  std::unique_ptr<Profile> fresh;
  if (on) {
    std::vector<int> kernels;
    for (const auto& op : ops_) kernels.push_back(static_cast<int>(op->bindings.size()));
    if (groups.empty()) {
      groups.resize(ops_.size());
      std::iota(groups.begin(), groups.end(), 0);
    }
    if (groups.size() != ops_.size()) fail(kBad, groups.size(), " groups for ", ops_.size(), " ops");
    for (size_t op = 0; op < groups.size(); ++op) {
      const auto group = static_cast<size_t>(groups[op]);
      if (group > op || groups[group] != groups[op] || kernels[group] != kernels[op]) {
        fail(kBad, "groups[", op, "] is ", groups[op], ", not the first op of a group of its kind");
      }
    }
    fresh = std::make_unique<Profile>(kernels, groups, pool_->threads(), events);
  }
  const auto held = pool_->lock();
  profile_ = std::move(fresh);
}

const Profile& Program::measured() const {
  if (profile_ == nullptr) fail("not_profiled", "nothing was measured: call profile(True) first");
  return *profile_;
}

// Checks that each bound kernel accepts the op, and gets its weight layout, its state and its scratch memory.
void Program::bind_kernels(Op& op, infeng_workspace& most) {
  op.problem.workers = pool_->threads();
  const DevicePtr device = op.on_host ? nullptr : device_;
  int64_t rows = 0;
  const int64_t all = op.samples ? limits_.samples : limits_.rows * op.row_copies;
  for (Binding& binding : op.bindings) {
    const Kernel& kernel = *binding.kernel;
    if (kernel.library->device != device) {
      const auto place = [](const DevicePtr& each) { return each == nullptr ? "the host" : each->library(); };
      fail("not_accepted", kernel.full_name(), ": computes on ", place(kernel.library->device), ", the program on ",
           place(device));
    }
    op.problem.rows_min = std::min(rows + 1, std::max<int64_t>(all, 1));
    op.problem.rows_max = std::max(op.problem.rows_min, std::min(binding.rows, all));
    rows = binding.rows;
    if (const uint64_t beyond = op.problem.needs & ~kernel.abi.handles) {
      const std::vector<std::string> names = need_names(beyond);
      fail("not_handled", kernel.full_name(), ": does not handle ", names.empty() ? "a function" : names.front(),
           " of ", name_of(Vocabulary::op, op.problem.op));
    }
    if (!kernel.accepts(op.problem)) {
      fail("not_accepted", kernel.full_name(), ": does not accept ", name_of(Vocabulary::op, op.problem.op), " for ",
           op.problem.rows_min, " to ", op.problem.rows_max, " rows (n ", op.problem.n, ", k ", op.problem.k,
           ", weight ", name_of(Vocabulary::weight, op.problem.weight_format), ")");
    }
    // Of experts on two sides the device gets copies of some alone.
    const bool is_partial = op.mixture != nullptr && !op.on_host;
    if (op.weight != nullptr) binding.weight = is_partial ? op.weight : in_layout_of(kernel, op.weight, pages_);
    const bool has_own_weight = binding.weight != nullptr && op.routing == nullptr;
    binding.instance = kernel.instance(op.problem, has_own_weight ? &binding.weight->abi : nullptr);
    const infeng_workspace wanted = kernel.workspace(op.problem);
    // Calls for several experts run at the same time, but on a device.
    if (op.routing != nullptr && device == nullptr &&
        (kernel.abi.kind != INFENG_KIND_TILES || kernel.abi.phases != nullptr || kernel.abi.prepare != nullptr ||
         wanted.shared > 0 || binding.weight != op.weight)) {
      fail(
          "not_accepted", kernel.full_name(),
          ": has phases, shared memory, a layout of its own, prepares or runs whole, so it cannot serve the linears of "
          "experts");
    }
    most.align = std::max(most.align, wanted.align);
    most.shared = std::max(most.shared, wanted.shared);
    most.per_worker = std::max(most.per_worker, wanted.per_worker);
    const bool stateful = kernel.library->thread_enter != nullptr || kernel.library->thread_exit != nullptr;
    if (stateful && std::find(libraries_.begin(), libraries_.end(), kernel.library) == libraries_.end()) {
      libraries_.push_back(kernel.library);
    }
  }
}

}  // namespace infeng
