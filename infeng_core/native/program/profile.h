// The time that steps take: totals per op, kernel and phase, and the latest events of every worker for a trace.
//
// Times are ticks; Python gets nanoseconds of the steady clock, which time.perf_counter_ns() reads. A phase begins when
// the last worker arrives at the barrier before it and ends when the last worker arrives at its own, so one reading
// ends a phase and begins the next. `head` is the time before the first phase of a step, `tail` the time after the
// last:
//   step = head + sum of wall + tail.
// Equal ops of different layers may share totals, so that the totals stay in the cache while weights stream through.
#pragma once

#include <cstdint>
#include <vector>

#include "program/ticks.h"

namespace infeng {

struct Op;

inline constexpr int kPhases = 4;  // phases with totals of their own; later phases count as the fourth

// Totals of one phase of one op under one kernel, counted by one worker. One worker begins a phase and one ends it, so
// the fields up to `bytes` mean something only as sums over workers.
struct PhaseTotals {
  int64_t calls;
  int64_t rows;
  int64_t tiles;
  int64_t wall;
  int64_t macs;   // multiply-adds of matrix products; 0 for ops without
  int64_t bytes;  // of weights, adapters, keys and values, each read or written once; 0 for ops without
  // This worker's own part; it spent the rest of `wall` waiting for the last worker.
  int64_t busy;
  int64_t late;  // from the beginning of the phase to its first tile
  int64_t own_tiles;
};

struct Event {
  int64_t begin;
  int64_t end;
  int32_t step;  // counted from 0
  int32_t op;
  int32_t kernel;  // index into the op's kernels
  int32_t phase;
  int32_t rows;
  int32_t tiles;  // run by this worker
};

// Each worker writes into its own memory during a step, without allocating; reading happens between steps. The state of
// the open phase lies in Step, in a cache line that workers read anyway: fetching another line from another core would
// cost more than all of the measuring.
class Profile {
 public:
  // `kernels`: the number of kernels of each op. `groups`: as in Program::profile(). `events`: the number kept of each
  // worker.
  Profile(const std::vector<int>& kernels, const std::vector<int>& groups, int threads, int64_t events);

  int64_t slot(int op, int kernel, int phase) const;

  void add_step(int64_t step_rows, int64_t begin, int64_t last_phase_end);  // of a step that ends now
  // Record the beginning of a phase, its duration, and one worker's part in it.
  void begun(int worker, int64_t slot, const Op& op, int phase, int64_t tiles);
  void ended(int worker, int64_t slot, int64_t wall) { totals(worker, slot).wall += wall; }
  void part(int worker, int64_t slot, int64_t late, const Event& event);

  int64_t steps = 0;
  int64_t rows = 0;
  int64_t step = 0;
  int64_t head = 0;
  int64_t tail = 0;
  TickScale scale() const { return TickScale(origin_); }

  int threads() const { return static_cast<int>(seats_.size()); }
  const PhaseTotals& totals(int worker, int64_t slot) const {
    return seats_[static_cast<size_t>(worker)].totals[static_cast<size_t>(slot)];
  }
  std::vector<Event> events(int worker) const;  // oldest first

 private:
  struct alignas(64) Seat {
    std::vector<PhaseTotals> totals;
    std::vector<Event> ring;
    int64_t next = 0;      // where the next event goes
    bool is_full = false;  // the ring wrapped around: the events from `next` on are the oldest
  };

  PhaseTotals& totals(int worker, int64_t slot) {
    return seats_[static_cast<size_t>(worker)].totals[static_cast<size_t>(slot)];
  }

  TickScale::Moment origin_;
  std::vector<int64_t> first_slot_;  // of each op
  std::vector<Seat> seats_;
};

}  // namespace infeng
