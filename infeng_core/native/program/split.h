// A mixture of experts on a device and on the host: which side computes which expert in a step.
//
// All experts are on the host; the device has copies of some. Results are the same on both sides, so the choice is a
// matter of time alone and may change at every step (docs/hybrid.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "machine/device.h"
#include "weights/weight.h"

namespace infeng {

struct Routing;

// What a computation on one side costs: the larger of bytes over `bytes` and multiply-adds over `products`, both a
// second.
struct SideRate {
  double bytes = 1;
  double products = 1;
};

struct SplitSpec {
  int64_t memory = 0;  // bytes of copies on the device in all; -1: most of what it leaves free
  SideRate host, device;
  double link = 1;                    // bytes a second from the host to the device
  double handoff = 0;                 // seconds, for rows to the host and results back
  std::optional<uint64_t> seed = {};  // draws the side of every expert with rows at random, for tests
};

// The experts of one layer.
class Mixture {
 public:
  Mixture(const SplitSpec& spec, const Routing& routing);

  // Adds the weight of a linear of the experts, in the host's memory; returns its number for weight().
  size_t add(std::shared_ptr<const Weight> weight);
  // Bytes of one expert in all its linears.
  int64_t expert_bytes() const { return expert_bytes_; }
  // Makes room on the device for copies of `count` experts.
  void reserve(const DevicePtr& device, int64_t count);

  // Chooses a side for each expert with rows in this step, and copies experts to the device that go there. Throws
  // Error.
  void decide(int64_t rows);

  const Routing& routing() const { return routing_; }
  bool is_on_host(int64_t expert) const { return slots_.empty() || !on_device_[static_cast<size_t>(expert)]; }
  // The device's copy of an expert's weight in one linear.
  const void* weight(int64_t expert, size_t linear) const;
  // Experts that were computed on the device, and on the host, since the mixture was made.
  int64_t chosen(bool on_device) const { return chosen_[on_device ? 1 : 0]; }

 private:
  struct Part {
    std::shared_ptr<const Weight> weight;
    int64_t nbytes;  // of one expert
    int64_t at;      // in a slot
  };

  double seconds(const SideRate& side, int64_t rows) const;
  void order_experts();
  size_t shortest_cut() const;
  void draw();
  void score(int64_t rows);
  void take_in(int64_t expert, bool is_ahead);
  void copy(int64_t expert, size_t slot);

  const SplitSpec spec_;
  const Routing& routing_;
  std::vector<Part> parts_;
  int64_t expert_bytes_ = 0;
  int64_t products_ = 0;  // of one row of one expert
  std::optional<DeviceMemory> memory_;
  std::vector<int32_t> slots_;     // (slots): the expert of which a slot has a copy; -1: it is free
  std::vector<int32_t> slot_of_;   // (experts): -1: the device has no copy
  std::vector<char> on_device_;    // (experts): whether the device computes it in this step
  std::vector<int32_t> in_order_;  // experts with rows: copied ones first, each kind by rows
  std::vector<float> average_;     // (experts): of shares of the rows of past steps
  std::vector<float> score_;       // (experts): of how much a copy is worth
  uint64_t drawn_;
  int64_t chosen_[2] = {};
};

}  // namespace infeng
