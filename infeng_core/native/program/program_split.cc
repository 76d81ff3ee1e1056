// A program whose experts are computed on a device and on the host (split.h): its layers, and the rows that go from one
// side to the other.
#include <infeng/extension/error.h>

#include <algorithm>
#include <utility>

#include "program/program.h"

namespace infeng {
namespace {

constexpr int64_t kLeft = 8;  // a program takes all but an eighth of the memory that a device leaves free

// Calls `visit` with each piece of a value's memory: its first byte, and the bytes of a row.
template <class Visit>
void visit_arrays(const Value& value, Visit visit) {
  if (!value.quantized) return visit(reinterpret_cast<std::byte*>(value.x), value.stride * 4);
  visit(reinterpret_cast<std::byte*>(value.q), value.q_stride);
  visit(reinterpret_cast<std::byte*>(value.scale), value.group_stride * 4);
  visit(reinterpret_cast<std::byte*>(value.sum), value.group_stride * 4);
}

struct Rows {
  int64_t begin;
  int64_t end;
};

// The next rows, from expert `next` on, of neighbouring experts that `is_on_host` says are on one side; none if `begin`
// is `end`. `next` becomes the expert behind them.
Rows next_rows(const Mixture& mixture, bool is_on_host, int64_t& next) {
  const Routing& routing = mixture.routing();
  const auto is_ours = [&](int64_t e) { return routing.rows_of(e) == 0 || mixture.is_on_host(e) == is_on_host; };
  while (next < routing.experts && (routing.rows_of(next) == 0 || !is_ours(next))) ++next;
  if (next == routing.experts) return {0, 0};
  const int64_t begin = routing.for_host.begin[next];
  while (next < routing.experts && is_ours(next)) ++next;
  return {begin, routing.for_host.begin[next]};
}

}  // namespace

void Program::split(const SplitSpec& spec) {
  if (device_ == nullptr) fail(kBad, "split: the program has no device");
  if (split_ || !ops_.empty()) fail(kBad, "split: comes once, before any op");
  for (const double rate : {spec.host.bytes, spec.host.products, spec.device.bytes, spec.device.products, spec.link}) {
    if (!(rate > 0)) fail(kBad, "split: a rate is above 0, not ", rate);
  }
  if (spec.memory < -1) fail(kBad, "split: ", spec.memory, " bytes for copies of experts");
  split_ = spec;
}

void Program::hand_over(int from, int to) {
  const Value &source = value(from), &target = value(to);
  if (mixtures_.empty()) fail(kBad, "hand_over: comes behind a ROUTE of a program that is split");
  if (source.on_host == target.on_host || source.quantized != target.quantized || source.rows != target.rows ||
      source.columns != target.columns || source.copies != target.copies) {
    fail(kBad, "hand_over: values ", from, " and ", to, " are not the same rows on two sides");
  }
  upcoming_.push_back({from, to, mixtures_.back().get()});
}

// Makes an op one of the latest ROUTE's experts.
void Program::join_mixture(Op& op) {
  if (!split_) return;
  if (mixtures_.empty()) fail(kBad, "experts: come behind a ROUTE");
  op.mixture = mixtures_.back().get();
  if (op.weight != nullptr && !op.on_host) op.linear = op.mixture->add(op.weight);
}

// Divides the room for copies of experts evenly between the layers.
void Program::reserve_experts() {
  if (!split_) return;
  int64_t each = 0;
  for (const auto& mixture : mixtures_) each += mixture->expert_bytes();
  if (each == 0 || split_->memory == 0) return;
  const int64_t free = device_->memory().first;
  const int64_t room = split_->memory < 0 ? free - free / kLeft : split_->memory;
  for (const auto& mixture : mixtures_) mixture->reserve(device_, room / each);
}

int64_t Program::experts_chosen(bool on_device) const {
  int64_t sum = 0;
  for (const auto& mixture : mixtures_) sum += mixture->chosen(on_device);
  return sum;
}

void Program::copy_rows(const HandOver& rows) {
  const Value &from = value(rows.from), &to = value(rows.to);
  std::vector<std::pair<std::byte*, int64_t>> sources;
  visit_arrays(from, [&](std::byte* data, int64_t bytes) { sources.emplace_back(data, bytes); });
  int64_t next = 0;
  for (;;) {
    const Rows part = next_rows(*rows.mixture, true, next);
    if (part.begin == part.end) return;
    size_t array = 0;
    visit_arrays(to, [&](std::byte* data, int64_t bytes) {
      const std::byte* const source = sources[array++].first + part.begin * bytes;
      const int64_t nbytes = (part.end - part.begin) * bytes;
      device_->copy(data + part.begin * bytes, source, nbytes,
                    to.on_host ? INFENG_COPY_TO_HOST : INFENG_COPY_TO_DEVICE);
    });
  }
}

// Sets an op over copies of rows up for the next ones whose experts are on its side; false if none are left.
bool Program::next_share(Op& op) {
  const Rows rows = next_rows(*op.mixture, op.on_host, op.next_expert);
  if (rows.begin == rows.end) return false;
  op.set_rows(rows.begin, rows.end - rows.begin);
  op.rows_set = -1;
  return true;
}

}  // namespace infeng
