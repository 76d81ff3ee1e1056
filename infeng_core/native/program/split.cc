#include "program/split.h"

#include <infeng/extension/error.h>

#include <algorithm>
#include <utility>

#include "program/experts.h"
#include "weights/arena.h"

namespace infeng {
namespace {

constexpr float kForgetting = 0.01f;  // weight of the latest step in an average

// A number that looks random, of one that counts (splitmix64).
uint64_t mixed(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace

Mixture::Mixture(const SplitSpec& spec, const Routing& routing)
    : spec_(spec), routing_(routing), drawn_(spec.seed.value_or(0)) {
  const auto count = static_cast<size_t>(routing.experts);
  slot_of_.assign(count, -1);
  on_device_.assign(count, 0);
  average_.assign(count, 0);
  score_.assign(count, 0);
  in_order_.reserve(count);
}

size_t Mixture::add(std::shared_ptr<const Weight> weight) {
  const infeng_weight& abi = weight->abi;
  const int64_t panels = abi.panels / routing_.experts;
  parts_.push_back({std::move(weight), panels * abi.panel_bytes, expert_bytes_});
  expert_bytes_ = round_up(expert_bytes_ + panels * abi.panel_bytes, kLine);
  products_ += panels * kPanel * abi.k;
  return parts_.size() - 1;
}

void Mixture::reserve(const DevicePtr& device, int64_t count) {
  count = std::min(count, routing_.experts);
  if (count < 1 || parts_.empty()) return;
  memory_.emplace(device, count * expert_bytes_);
  slots_.assign(static_cast<size_t>(count), -1);
}

const void* Mixture::weight(int64_t expert, size_t linear) const {
  return memory_->data() + slot_of_[static_cast<size_t>(expert)] * expert_bytes_ + parts_[linear].at;
}

double Mixture::seconds(const SideRate& side, int64_t rows) const {
  const double bytes = static_cast<double>(expert_bytes_), products = static_cast<double>(products_ * rows);
  return std::max(bytes / side.bytes, products / side.products);
}

void Mixture::order_experts() {
  in_order_.clear();
  for (int64_t e = 0; e < routing_.experts; ++e) {
    if (routing_.rows_of(e) > 0) in_order_.push_back(static_cast<int32_t>(e));
  }
  std::stable_sort(in_order_.begin(), in_order_.end(), [this](int32_t a, int32_t b) {
    const bool has_a = slot_of_[static_cast<size_t>(a)] >= 0, has_b = slot_of_[static_cast<size_t>(b)] >= 0;
    return has_a != has_b ? has_a : routing_.rows_of(a) > routing_.rows_of(b);
  });
}

// How many experts of `in_order_` the device computes, so that the layer takes the least time: the device takes them in
// turn, each copied one once it is there; the host takes the others meanwhile; and what is read of the host's memory,
// by either, cannot be read faster than it delivers.
size_t Mixture::shortest_cut() const {
  double on_host = 0, read = 0;
  for (const int32_t expert : in_order_) {
    on_host += seconds(spec_.host, routing_.rows_of(expert));
    read += static_cast<double>(expert_bytes_) / spec_.host.bytes;
  }
  double best = std::max(on_host + spec_.handoff, read), on_device = 0, moved = 0;
  size_t cut = 0;
  for (size_t i = 0; i < std::min(in_order_.size(), slots_.size()); ++i) {
    const int32_t expert = in_order_[i];
    const int64_t rows = routing_.rows_of(expert);
    if (slot_of_[static_cast<size_t>(expert)] < 0) {
      moved += static_cast<double>(expert_bytes_) / spec_.link;
      on_device = std::max(on_device, moved);
    } else {
      read -= static_cast<double>(expert_bytes_) / spec_.host.bytes;
    }
    on_device += seconds(spec_.device, rows);
    on_host -= seconds(spec_.host, rows);
    const bool shares = i + 1 < in_order_.size();
    const double time = std::max({on_device, shares ? on_host + spec_.handoff : 0, read});
    if (time >= best) continue;
    best = time;
    cut = i + 1;
  }
  return cut;
}

void Mixture::draw() {
  size_t room = slots_.size();
  for (const int32_t expert : in_order_) {
    const bool takes = room > 0 && (mixed(drawn_++) & 1) != 0;
    on_device_[static_cast<size_t>(expert)] = takes ? 1 : 0;
    room -= takes ? 1 : 0;
  }
}

// A score estimates the share of the next step's rows: the average knows what is popular, the latest step what its rows
// are about.
void Mixture::score(int64_t rows) {
  for (int64_t e = 0; e < routing_.experts; ++e) {
    const auto i = static_cast<size_t>(e);
    const float share = static_cast<float>(routing_.rows_of(e)) / static_cast<float>(rows);
    average_[i] += kForgetting * (share - average_[i]);
    score_[i] = (share + average_[i]) / 2;
  }
}

void Mixture::copy(int64_t expert, size_t slot) {
  if (slots_[slot] >= 0) slot_of_[static_cast<size_t>(slots_[slot])] = -1;
  slots_[slot] = -1;  // until all of it is there
  std::byte* const to = memory_->data() + static_cast<int64_t>(slot) * expert_bytes_;
  for (const Part& part : parts_) {
    const auto* from = static_cast<const std::byte*>(part.weight->abi.data) + expert * part.nbytes;
    memory_->device().upload(to + part.at, from, part.nbytes);
  }
  slots_[slot] = static_cast<int32_t>(expert);
  slot_of_[static_cast<size_t>(expert)] = static_cast<int32_t>(slot);
}

// Copies an expert to a free slot, or to that of the least worth which the device does not compute in this step. One
// that is copied `is_ahead` of its rows replaces only what is worth less.
void Mixture::take_in(int64_t expert, bool is_ahead) {
  size_t least = slots_.size();
  for (size_t slot = 0; slot < slots_.size(); ++slot) {
    const int32_t held = slots_[slot];
    if (held < 0) return copy(expert, slot);
    const auto worth = [&](int32_t e) { return score_[static_cast<size_t>(e)]; };
    if (on_device_[static_cast<size_t>(held)]) continue;
    if (least == slots_.size() || worth(held) < worth(slots_[least])) least = slot;
  }
  if (least == slots_.size()) return;
  if (is_ahead && score_[static_cast<size_t>(slots_[least])] >= score_[static_cast<size_t>(expert)]) return;
  copy(expert, least);
}

void Mixture::decide(int64_t rows) {
  order_experts();
  std::fill(on_device_.begin(), on_device_.end(), 0);
  if (spec_.seed) {
    draw();
  } else {
    const size_t cut = shortest_cut();
    for (size_t i = 0; i < cut; ++i) on_device_[static_cast<size_t>(in_order_[i])] = 1;
  }
  score(rows);
  for (const int32_t expert : in_order_) {
    const auto e = static_cast<size_t>(expert);
    ++chosen_[static_cast<size_t>(on_device_[e])];
    if (on_device_[e] && slot_of_[e] < 0) take_in(expert, false);
  }
  if (slots_.empty()) return;
  // One more, for the steps to come: the expert of this step that is worth most and is not there.
  const auto lacks = [this](int32_t e) { return slot_of_[static_cast<size_t>(e)] < 0; };
  int32_t most = -1;
  for (const int32_t expert : in_order_) {
    const bool is_more = most < 0 || score_[static_cast<size_t>(expert)] > score_[static_cast<size_t>(most)];
    if (lacks(expert) && is_more) most = expert;
  }
  if (most >= 0) take_in(most, true);
}

}  // namespace infeng
