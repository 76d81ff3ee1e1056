// Where the time of steps goes: totals per op, kernel and phase, and the latest events of every worker for a trace.
//
// Times are ticks; Python gets them as nanoseconds of the steady clock, its time.perf_counter_ns(). A phase lasts from
// the arrival of the last worker at the barrier before it to the arrival of the last one at its own, so that one
// reading of the clock serves both; `head` is what comes before the first phase of a step, `tail` what comes after the
// last:
//   step = head + sum of wall + tail.
// Equal ops of different layers may share their totals: few of them stay in the cache while weights stream through it.
#pragma once

#include <cstdint>
#include <vector>

#include "program/ticks.h"

namespace infeng {

struct Op;

inline constexpr int kPhases = 4;  // kept apart; later phases of an op count as the fourth

// One phase of one op under one kernel, as one worker saw it; the fields above the line are added up over workers, for
// each phase is begun by one of them and ended by one.
struct PhaseTotals {
  int64_t calls;
  int64_t rows;
  int64_t tiles;
  int64_t wall;
  int64_t macs;   // multiply-adds of matrix products; 0 for ops without
  int64_t bytes;  // of weights, adapters, keys and values, each read or written once; 0 for ops without
  // This worker's own part. What is missing to wall it spent waiting for the last one.
  int64_t busy;
  int64_t late;  // from the beginning of the phase to its first tile
  int64_t own_tiles;
};

struct Event {
  int64_t begin;
  int64_t end;
  int32_t step;  // counted from 0
  int32_t op;
  int32_t kernel;  // which of the op's kernels
  int32_t phase;
  int32_t rows;
  int32_t tiles;  // that this worker ran
};

// Written on the step path without allocating, by each worker into memory of its own; read between steps. What changes
// from phase to phase lies in the step, beside what workers read there anyway: a line that has to come from another
// core costs more than all that is done here.
class Profile {
 public:
  // `kernels`: the number of kernels of each op. `groups`: the first of the ops with which each op shares its totals,
  // all of which have as many kernels. `events`: kept of each worker.
  Profile(const std::vector<int>& kernels, const std::vector<int>& groups, int threads, int64_t events);

  int64_t slot(int op, int kernel, int phase) const;

  void add_step(int64_t step_rows, int64_t begin, int64_t last_phase_end);  // that ends now
  // Counts the beginning of a phase, then its duration, then each worker's part in it.
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
    bool is_full = false;  // once, so that the events after it are the oldest
  };

  PhaseTotals& totals(int worker, int64_t slot) {
    return seats_[static_cast<size_t>(worker)].totals[static_cast<size_t>(slot)];
  }

  TickScale::Moment origin_;
  std::vector<int64_t> first_slot_;  // of each op
  std::vector<Seat> seats_;
};

}  // namespace infeng
