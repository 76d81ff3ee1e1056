#include "program/profile.h"

#include <algorithm>

#include "program/program.h"
#include "program/work.h"

namespace infeng {
Profile::Profile(const std::vector<int>& kernels, const std::vector<int>& groups, int threads, int64_t events) {
  int64_t slots = 0;
  for (size_t op = 0; op < kernels.size(); ++op) {
    const auto group = static_cast<size_t>(groups[op]);
    first_slot_.push_back(group < op ? first_slot_[group] : slots);
    if (group == op) slots += int64_t{kernels[op]} * kPhases;
  }
  seats_.resize(static_cast<size_t>(threads));
  for (Seat& seat : seats_) {
    seat.totals.resize(static_cast<size_t>(slots));
    seat.ring.resize(static_cast<size_t>(events));
  }
}

int64_t Profile::slot(int op, int kernel, int phase) const {
  return first_slot_[static_cast<size_t>(op)] + kernel * kPhases + std::min(phase, kPhases - 1);
}

void Profile::add_step(int64_t step_rows, int64_t begin, int64_t last_phase_end) {
  const int64_t end = ticks();
  tail += end - last_phase_end;
  step += end - begin;
  rows += step_rows;
  ++steps;
}

void Profile::begun(int worker, int64_t slot, const Op& op, int phase, int64_t tiles) {
  PhaseTotals& sum = totals(worker, slot);
  ++sum.calls;
  sum.rows += op.args.common.rows;
  sum.tiles += tiles;
  if (phase > 0) return;
  const Work work = work_of(op);
  sum.macs += work.macs;
  sum.bytes += work.bytes;
}

void Profile::part(int worker, int64_t slot, int64_t late, const Event& event) {
  PhaseTotals& sum = totals(worker, slot);
  sum.busy += event.end - event.begin;
  sum.late += late;
  sum.own_tiles += event.tiles;
  Seat& seat = seats_[static_cast<size_t>(worker)];
  if (seat.ring.empty()) return;
  seat.ring[static_cast<size_t>(seat.next)] = event;
  if (++seat.next == static_cast<int64_t>(seat.ring.size())) {
    seat.next = 0;
    seat.is_full = true;
  }
}

std::vector<Event> Profile::events(int worker) const {
  const Seat& seat = seats_[static_cast<size_t>(worker)];
  const auto next = seat.ring.begin() + seat.next;
  std::vector<Event> out;
  if (seat.is_full) out.assign(next, seat.ring.end());
  out.insert(out.end(), seat.ring.begin(), next);
  return out;
}

}  // namespace infeng
