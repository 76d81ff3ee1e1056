// One step: the ops run phase by phase, and workers claim ranges of tiles.
#include <infeng/extension/error.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "machine/fpstate.h"
#include "program/program.h"
#include "vocabulary/names.h"

namespace infeng {
namespace {

// How much of the next weight a worker prefetches while it waits, a fraction of the L2 cache, and the most rows with
// which it does: larger batches are not bound by memory.
constexpr int64_t kFetchBytes = 256 << 10;
constexpr int64_t kFetchRows = 16;

}  // namespace

class Step final : public Job {
 public:
  Step(Program& program, int64_t begin)
      : program_(program),
        threads_(program.pool_->threads()),
        profile_(program.profile_.get()),
        team_{{sizeof(infeng_team), static_cast<int32_t>(program.pool_->cpus().size()), program.pool_->cpus().data(),
               &Step::each, &Step::is_cancelled},
              this},
        begin_(begin) {}

  Next advance(int worker) override;
  void work(int worker) override;

  bool failed() const { return failed_.load(std::memory_order_acquire); }
  const Program::Failure& failure() const { return failure_; }
  int64_t end() const { return begin_; }  // of the last phase

 private:
  bool stopped() const {
    return failed_.load(std::memory_order_relaxed) || program_.cancelled_.load(std::memory_order_relaxed);
  }
  bool enter(int worker);
  bool next_op(int worker);
  bool prepare(int worker);
  bool begin_op();
  void read_routing(const Routing& routing, Mixture* mixture);
  bool next_phase(int worker);
  void mark(int worker, int64_t now);
  void open(int worker);
  void record(int worker, int64_t begin, int64_t end, int64_t tiles);
  void run_tiles(int worker, int64_t first, int64_t last);
  void run_alone(int worker);
  int64_t claim_tiles(int worker);
  void fetch_ahead(int worker);
  void fail_with(int worker, infeng_status status, const Library* library, const char* text);

  // The workers as WHOLE kernels see them.
  struct Team {
    infeng_team abi;
    Step* step;
  };
  struct Parts {
    Step& step;
    const int64_t count;
    const infeng_part part;
    void* const context;
    std::atomic<int64_t> next{0};
    std::atomic<infeng_status> status{INFENG_OK};  // the first that is not OK
  };
  static infeng_status each(const infeng_team* team, int64_t count, infeng_part part, void* context);
  static int32_t is_cancelled(const infeng_team* team);
  static void share_parts(void* parts, int worker);
  infeng_status run_part(Parts& parts, int64_t index, infeng_worker* worker);

  Program& program_;
  const int threads_;
  Profile* const profile_;  // NULL: nothing is measured
  const Team team_;

  // Read by all workers in every phase: one cache line.
  alignas(64) size_t index_ = 0;  // of the op after this one
  Op* op_ = nullptr;
  int32_t phase_ = 0;
  int32_t phases_ = 0;
  int64_t tiles_ = 0;
  int64_t slot_ = -1;          // the phase's slot in the profile; -1: no phase is open
  bool knows_routing_ = true;  // whether the host has the latest
  int64_t begin_;              // ticks at which the phase, or the gap between two, began
  int publisher_ = 0;          // the worker that began the phase

  Program::Failure failure_;
  std::atomic_flag reported_;
  std::atomic<bool> failed_{false};
  alignas(64) std::atomic<int> finished_{0};  // workers for which the phase has no tiles left
};

// Keeps the first failure; `text` replaces the kernel's own message.
void Step::fail_with(int worker, infeng_status status, const Library* library, const char* text) {
  if (reported_.test_and_set(std::memory_order_acq_rel)) return;
  failure_.op = op_;
  failure_.status = status;
  failure_.library = library;
  std::strncpy(failure_.message, text != nullptr ? text : program_.seats_[worker].message, sizeof failure_.message - 1);
  failed_.store(true, std::memory_order_release);
}

bool Step::enter(int worker) {
  if (program_.libraries_.empty()) return true;
  const Library* culprit = nullptr;
  const infeng_status status = enter_thread(program_.libraries_, &culprit);
  if (status != INFENG_OK) fail_with(worker, status, culprit, "its thread_enter failed");
  return status == INFENG_OK;
}

void Step::run_tiles(int worker, int64_t first, int64_t last) {
  Seat& seat = program_.seats_[worker];
  infeng_status status = INFENG_INTERNAL;
  seat.worker.team = op_->kernel->abi.kind == INFENG_KIND_WHOLE ? &team_.abi : nullptr;
  fp_write(kFpContract);  // before every call: a kernel may have left another mode behind
  try {
    status = op_->routing != nullptr ? program_.expert_calls_.run(first, last, &seat.worker)
                                     : op_->kernel->abi.run(&op_->args.common, phase_, first, last, &seat.worker);
    if (profile_ != nullptr && program_.device_ != nullptr && !op_->on_host) program_.device_->wait();
  } catch (...) {  // kernels must not throw, but an exception here would end the process
    fail_with(worker, INFENG_INTERNAL, nullptr, "the kernel threw a C++ exception");
  }
  seat.worker.team = nullptr;
  if (op_->problem.op == INFENG_OP_ROUTE) knows_routing_ = program_.device_ == nullptr;
  if (status != INFENG_OK) fail_with(worker, status, nullptr, nullptr);
}

int32_t Step::is_cancelled(const infeng_team* team) {
  const Step& step = *reinterpret_cast<const Team*>(team)->step;
  return step.program_.cancelled_.load(std::memory_order_relaxed) ? 1 : 0;
}

infeng_status Step::each(const infeng_team* team, int64_t count, infeng_part part, void* context) {
  Step& step = *reinterpret_cast<const Team*>(team)->step;
  Parts parts{step, count, part, context};
  if (count > 0) step.program_.pool_->lend(&Step::share_parts, &parts);
  return parts.status.load(std::memory_order_relaxed);
}

// Claims parts for one worker until none is left or one has failed.
void Step::share_parts(void* context, int worker) {
  Parts& parts = *static_cast<Parts*>(context);
  Step& step = parts.step;
  infeng_worker own = step.program_.seats_[worker].worker;
  own.team = nullptr;
  infeng_status status = step.enter(worker) ? INFENG_OK : INFENG_INTERNAL;
  while (status == INFENG_OK && parts.status.load(std::memory_order_relaxed) == INFENG_OK) {
    const int64_t index = parts.next.fetch_add(1, std::memory_order_relaxed);
    if (index >= parts.count) return;
    status = step.run_part(parts, index, &own);
  }
  infeng_status none = INFENG_OK;
  if (status == INFENG_OK || !parts.status.compare_exchange_strong(none, status)) return;
  // The kernel's call returns on worker 0, whose message the host reads.
  if (worker != 0) std::memcpy(step.program_.seats_[0].message, own.message, sizeof(Seat::message));
}

infeng_status Step::run_part(Parts& parts, int64_t index, infeng_worker* worker) {
  fp_write(kFpContract);
  try {
    return parts.part(parts.context, index, worker);
  } catch (...) {
    fail_with(worker->index, INFENG_INTERNAL, nullptr, "the kernel threw a C++ exception");
    return INFENG_INTERNAL;
  }
}

// Tells the op's kernel of another number of rows than it ran last. False if it fails.
bool Step::prepare(int worker) {
  const infeng_kernel& kernel = op_->kernel->abi;
  const int64_t rows = op_->args.common.rows;
  if (op_->routing != nullptr || kernel.prepare == nullptr) return true;
  Binding& binding = op_->bindings[static_cast<size_t>(op_->kernel_index)];
  if (binding.prepared == rows) return true;
  fp_write(kFpContract);
  const infeng_status status = kernel.prepare(op_->args.common.instance, rows, &program_.seats_[worker].worker);
  if (status != INFENG_OK) fail_with(worker, status, nullptr, nullptr);
  binding.prepared = status == INFENG_OK ? rows : -1;
  return status == INFENG_OK;
}

// Fetches what ROUTE computed on a device, once the host needs it, and decides which side computes which expert.
void Step::read_routing(const Routing& routing, Mixture* mixture) {
  if (knows_routing_) return;
  program_.read_routing(routing);
  if (mixture != nullptr) mixture->decide(program_.rows_);
  knows_routing_ = true;
}

// Copies what the op needs and selects its first rows; false if it has none.
bool Step::begin_op() {
  for (const HandOver& rows : op_->before) {
    read_routing(rows.mixture->routing(), rows.mixture);
    program_.copy_rows(rows);
  }
  if (op_->routing != nullptr) read_routing(*op_->routing, op_->mixture);
  if (op_->mixture != nullptr && op_->routing == nullptr) {
    op_->next_expert = 0;
    return program_.next_share(*op_);
  }
  program_.next_slice(*op_);
  return true;
}

// Moves to the op's next slice, or to the next op that has rows in this step. Sets `phases_` to -1 if it cannot run.
bool Step::next_op(int worker) {
  const auto& ops = program_.ops_;
  if (op_ == nullptr || !program_.next_slice(*op_)) {
    do {
      if (index_ == ops.size()) return false;
      op_ = ops[index_++].get();
    } while (op_->args.common.rows == 0 || !begin_op());
  }
  phase_ = -1;
  if (op_->routing != nullptr) {
    phases_ = program_.expert_calls_.make(*op_, program_.rows_, program_.lora_) ? 1 : -1;
    return true;
  }
  const infeng_kernel& kernel = op_->kernel->abi;
  phases_ = !prepare(worker) ? -1 : kernel.phases == nullptr ? 1 : kernel.phases(&op_->args.common);
  return true;
}

// Moves to the next phase that has tiles.
bool Step::next_phase(int worker) {
  try {
    for (;;) {
      while (++phase_ >= phases_) {
        if (!next_op(worker)) return false;
        if (phases_ < 0) {
          fail_with(worker, INFENG_INTERNAL, nullptr, "the kernel of ROUTE before it did not sort the rows by expert");
          return false;
        }
      }
      const bool has_experts = op_->routing != nullptr;
      tiles_ = has_experts ? program_.expert_calls_.tiles() : op_->kernel->abi.tiles(&op_->args.common, phase_);
      const bool countable = tiles_ >= 0 && tiles_ <= INT32_MAX;
      if (!countable) fail_with(worker, INFENG_INTERNAL, nullptr, "its tile count is negative or beyond 2^31");
      if (tiles_ != 0) return countable;
    }
  } catch (const Error& error) {
    fail_with(worker, INFENG_INTERNAL, nullptr, error.what());
    return false;
  } catch (...) {
    fail_with(worker, INFENG_INTERNAL, nullptr, "the kernel threw a C++ exception");
    return false;
  }
}

// Ends the open phase, or the head of the step, at `now`.
void Step::mark(int worker, int64_t now) {
  if (slot_ >= 0) {
    profile_->ended(worker, slot_, now - begin_);
  } else {
    profile_->head += now - begin_;
  }
  slot_ = -1;
  begin_ = now;
}

void Step::open(int worker) {
  publisher_ = worker;
  slot_ = profile_->slot(static_cast<int>(index_) - 1, op_->kernel_index, phase_);
  profile_->begun(worker, slot_, *op_, phase_, tiles_);
}

void Step::record(int worker, int64_t begin, int64_t end, int64_t tiles) {
  const auto narrow = [](int64_t value) { return static_cast<int32_t>(value); };
  profile_->part(worker, slot_, std::max<int64_t>(0, begin - begin_),
                 {begin, end, narrow(profile_->steps), narrow(static_cast<int64_t>(index_)) - 1, op_->kernel_index,
                  phase_, narrow(op_->args.common.rows), narrow(tiles)});
}

// Runs all tiles of the phase on the worker that prepares it, while the others wait.
void Step::run_alone(int worker) {
  run_tiles(worker, 0, tiles_);
  if (profile_ == nullptr) return;
  const int64_t now = ticks();
  record(worker, begin_, now, tiles_);
  mark(worker, now);
}

Job::Next Step::advance(int worker) {
  if (profile_ != nullptr) mark(worker, ticks());
  if (!enter(worker)) return Next::end;
  while (!stopped() && next_phase(worker)) {
    if (profile_ != nullptr) open(worker);
    const bool whole = op_->kernel->abi.kind == INFENG_KIND_WHOLE;
    if (whole && threads_ > 1) return Next::alone;
    const bool small = tiles_ == 1 || op_->args.common.rows <= op_->solo_rows;
    if (!whole && !small) {
      program_.shares_.deal(tiles_);
      finished_.store(0, std::memory_order_relaxed);
      return Next::everyone;
    }
    run_alone(worker);  // a barrier would cost more than it saves
  }
  return Next::end;
}

void Step::work(int worker) {
  const int64_t begin = profile_ == nullptr || worker == publisher_ ? begin_ : ticks();
  const bool entered = enter(worker);
  const int64_t tiles = entered ? claim_tiles(worker) : 0;
  if (profile_ != nullptr) record(worker, begin, ticks(), tiles);
  if (entered && op_->kernel->abi.kind != INFENG_KIND_WHOLE) fetch_ahead(worker);
}

// Runs tiles until none is left; returns how many.
int64_t Step::claim_tiles(int worker) {
  if (op_->kernel->abi.kind == INFENG_KIND_WHOLE) {
    run_tiles(worker, 0, tiles_);
    return tiles_;
  }
  int64_t done = 0;
  while (!stopped()) {
    const TileRange range = program_.shares_.claim(worker);
    if (range.empty()) break;
    run_tiles(worker, range.first, range.last);
    done += range.last - range.first;
  }
  return done;
}

// A worker without tiles prefetches the start of its part of the next weight into its L2 cache while others still run:
// with few rows a step is bound by memory, which would idle.
void Step::fetch_ahead(int worker) {
  constexpr int64_t kBurst = 16;  // lines, about as many as a core can have in flight
  const bool is_last = finished_.fetch_add(1, std::memory_order_relaxed) + 1 == threads_;
  const Op* next = op_->upcoming;
  if (is_last || next == nullptr || next->args.common.rows > kFetchRows) return;
  const infeng_weight& weight = **next->weight_at;
  const auto* line =
      static_cast<const char*>(weight.data) + own_range(weight.panels, worker, threads_).first * weight.panel_bytes;
  const char* const end =
      std::min(line + kFetchBytes, static_cast<const char*>(weight.data) + weight.panels * weight.panel_bytes);
  while (line < end && finished_.load(std::memory_order_relaxed) < threads_) {
    for (int64_t i = 0; i < kBurst; ++i, line += 64) __builtin_prefetch(line, 0, 2);
  }
}

// Counts the runs that hold or wait for the pool. A cancel stops all of them; the first run after the last of them
// clears its mark.
class Program::InFlight {
 public:
  explicit InFlight(Program& program) : program_(program) {
    if (program_.in_flight_.fetch_add(1) == 0) program_.cancelled_.store(false);
  }
  ~InFlight() { program_.in_flight_.fetch_sub(1); }
  InFlight(const InFlight&) = delete;
  InFlight& operator=(const InFlight&) = delete;

 private:
  Program& program_;
};

void Program::run(const Batch& batch) {
  if (!finished_) fail("not_finished", "call finish() before run()");
  const InFlight in_flight(*this);
  const auto held = pool_->lock(cancelled_);
  const int64_t begin = profile_ == nullptr ? 0 : ticks();
  take(batch);
  patch();
  for (int i = 0; i < pool_->threads(); ++i) seats_[i].message[0] = '\0';
  if (device_ != nullptr) begin_on_device();
  Step step(*this, begin);
  pool_->run(held, step);
  if (device_ != nullptr) end_on_device(step.failed());
  if (profile_ != nullptr) profile_->add_step(rows_, begin, step.end());
  if (step.failed()) throw_failure(step.failure());
  if (cancelled_.load(std::memory_order_relaxed)) fail("cancelled", "the step was cancelled");
}

void Program::throw_failure(const Failure& failure) const {
  const char* code = status_code(failure.status);
  if (failure.library != nullptr) {
    fail(code, failure.library->name, ": ", failure.message, " with status ", failure.status, " (", code, ")");
  }
  size_t index = 0;
  while (ops_[index].get() != failure.op) ++index;
  const char* colon = failure.message[0] == '\0' ? "" : ": ";
  fail(code, name_of(Vocabulary::op, failure.op->problem.op), " (op ", index, ", kernel ",
       failure.op->kernel->full_name(), "): status ", failure.status, " (", code, ")", colon, failure.message);
}

}  // namespace infeng
