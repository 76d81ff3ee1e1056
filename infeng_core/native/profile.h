// Where the time of steps goes: totals per op, kernel and phase, and the latest events of every worker for a trace.
//
// Times are nanoseconds of the steady clock, which is Python's time.perf_counter_ns() too. A phase lasts from the
// moment it is published to the moment its last worker has finished; the gap before it is what the barrier, the choice
// of the phase and, in front of the first op, the check of the batch cost. So over any number of whole steps
//   step_ns = sum of wall_ns + sum of gap_ns + tail_ns.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

namespace infeng {

struct Op;

inline constexpr int kPhases = 4;  // kept apart; later phases of an op count as the fourth

// One phase of one op under one kernel.
struct PhaseTotals {
  int64_t calls;
  int64_t rows;
  int64_t tiles;
  int64_t wall_ns;
  int64_t gap_ns;
  int64_t macs;   // multiply-adds of matrix products; 0 for ops without
  int64_t bytes;  // of weights, keys and values, each read or written once; 0 for ops without
};

// One worker's part of it. What is missing to wall_ns it spent waiting for the last one.
struct WorkerTotals {
  int64_t busy_ns;
  int64_t late_ns;  // from the publication to its first tile
  int64_t tiles;
};

struct Event {
  int64_t begin_ns;
  int64_t end_ns;
  int32_t step;  // counted from 0
  int32_t op;
  int32_t kernel;  // which of the op's kernels
  int32_t phase;
  int32_t rows;
  int32_t tiles;  // that this worker ran
};

// Written on the step path without allocating; read between steps.
class Profile {
 public:
  // `kernels`: the number of kernels of each op. `events`: kept of each worker.
  Profile(const std::vector<int>& kernels, int threads, int64_t events);

  void begin_step();
  void end_step(int64_t step_rows);  // not called for a batch that was refused

  // A phase: open, then start and stop on each worker that takes part, then close.
  void open(const Op& op, int op_index, int phase, int64_t tiles);
  void start(int worker) { seats_[static_cast<size_t>(worker)].begin_ns = now(); }
  void stop(int worker, int64_t tiles);
  void close();  // does nothing where none is open

  int64_t steps = 0;
  int64_t rows = 0;
  int64_t step_ns = 0;
  int64_t tail_ns = 0;

  // Indices into phases() and a worker's totals().
  int64_t slot(int op, int kernel, int phase) const;
  int64_t slots() const { return static_cast<int64_t>(phases_.size()); }
  const PhaseTotals& phase(int64_t slot) const { return phases_[static_cast<size_t>(slot)]; }
  const WorkerTotals& part(int64_t slot, int worker) const {
    return seats_[static_cast<size_t>(worker)].totals[static_cast<size_t>(slot)];
  }
  int threads() const { return static_cast<int>(seats_.size()); }
  std::vector<Event> events(int worker) const;  // oldest first

 private:
  struct alignas(64) Seat {
    int64_t begin_ns = 0;
    std::vector<WorkerTotals> totals;
    std::vector<Event> ring;
    int64_t count = 0;  // of events ever
  };

  static int64_t now() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }

  std::vector<int64_t> first_slot_;  // of each op
  std::vector<PhaseTotals> phases_;
  std::vector<Seat> seats_;

  // The phase that is open, and the end of what was before it.
  bool is_open_ = false;
  int64_t slot_ = 0;
  int64_t opened_ns_ = 0;
  Event open_{};
  int64_t step_begin_ns_ = 0;
  int64_t mark_ns_ = 0;
};

}  // namespace infeng
