// What adapters change in a program: the slots and modules that it declares, and what a step's rows use of them.
//
// A slot is a linear (or the embeddings) to which adapters add low-rank products: a SHRINK op makes u, a LORA step
// expands it. A module is an op whose weight an adapter may replace; such an op runs once for each run of rows that
// share a weight.
#pragma once

#include <infeng/abi.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "program/adapter.h"
#include "weights/arena.h"

namespace infeng {

struct Op;
struct Routing;

// Rows [begin, end) of a step use an adapter. Adapters that combine have the same rows and follow each other.
struct AdapterRows {
  int32_t begin;
  int32_t end;
  float weight;
  std::shared_ptr<const Adapter> adapter;
};

struct LoraSlot {
  std::string name;
  bool is_embedding = false;
  bool samples = false;
  int64_t panels = 0;  // of the outputs
  int64_t k = 0;       // inputs; of the embeddings, the vocabulary
  Op* shrink = nullptr;
  const Routing* routing = nullptr;  // of experts, each of which has products of its own
  Op* expand = nullptr;
  size_t first = 0;  // its place, or that of expert 0, among the tensors of an adapter

  int64_t experts() const;  // 0: it is of no mixture
  // Of this step: what LORA gets, and the memory of its adapters.
  std::span<const infeng_lora_segment> segments = {};
  const infeng_range* pieces = nullptr;
  int64_t piece_count = 0;
};

struct Module {
  std::string name;
  const Op* op = nullptr;
};

class Lora {
 public:
  static constexpr size_t kMostParts = 4;  // projections of one packed tensor

  // Declared before finish(). `columns` of u; at most `ranges` of rows in a step. Throw Error "invalid_argument".
  void open(uint32_t dtype, int64_t columns, int64_t ranges);
  int add_slot(LoraSlot slot);
  void set_expand(int slot, Op& op);  // whose list begins with LORA
  void add_module(std::string name, Op& op);
  void finish(const std::vector<std::unique_ptr<Op>>& ops);

  bool is_open() const { return columns_ > 0; }
  uint32_t dtype() const { return dtype_; }
  int64_t columns() const { return columns_; }
  uint64_t program() const { return program_; }
  const LoraSlot& slot(int index) const { return slots_.at(static_cast<size_t>(index)); }
  std::span<const LoraSlot> slots() const { return slots_; }
  std::span<const Module> modules() const { return modules_; }
  size_t places() const { return places_; }
  bool has_slot(int index) const { return index >= 0 && static_cast<size_t>(index) < slots_.size(); }

  // One step: checks the ranges, then writes the segments of all ops unless they are those of the step before. Throws
  // Error "invalid_argument".
  void take(std::span<const AdapterRows> adapters, int64_t rows, std::span<const int32_t> samples);
  void patch(const int32_t* tokens, float* u, int64_t stride);

  bool replaces(const Op& op) const;
  // The weight of the op's row `begin`, NULL for its own, and where the rows with that weight end.
  const Replacement* replacement(const Op& op, int64_t begin, int64_t* end) const;
  // Whether rows of the step use products of the slot.
  bool is_used(int slot) const;
  // The segments of an expert's rows, which are `rows` of the batch, ascending; those of SHRINK or of LORA. They stay
  // until the next op's are `begun`.
  void begin_experts() { upcoming_ = 0; }
  std::span<const infeng_lora_segment> of_expert(int slot, int64_t expert, std::span<const int32_t> rows, bool shrinks);
  // The op's segments in rows [begin, end), counted from `begin`.
  std::span<const infeng_lora_segment> segments(const Op& op, int64_t begin, int64_t end) const;

 private:
  struct Range {
    int32_t begin;
    int32_t end;
    int32_t sample_begin;
    int32_t sample_end;
    float weight;
    bool combines;  // with the range before
    bool is_first;  // of its adapter
    const Adapter* adapter;
    uint64_t id;

    bool operator==(const Range&) const = default;
  };
  struct Fetch {
    Op* op;
    const LoraSlot* slot;
  };

  Range range_of(const AdapterRows& rows, size_t index, int64_t row_count, std::span<const int32_t> samples) const;
  void fill(LoraSlot& slot, infeng_lora_segment*& next, infeng_range*& piece);
  void fill_experts(size_t slot);
  void gather(const int32_t* tokens, float* u, int64_t stride) const;

  uint32_t dtype_ = 0;
  int64_t columns_ = 0;
  int64_t most_ranges_ = 0;
  uint64_t program_ = 0;
  int embedding_slot_ = -1;
  std::vector<LoraSlot> slots_;
  std::vector<Module> modules_;
  std::vector<Fetch> fetches_;

  // Room for the most segments there can be; what is never used is never touched.
  std::optional<Arena> segments_;
  std::optional<Arena> pieces_;
  std::optional<Arena> slice_;
  std::optional<Arena> of_experts_;
  size_t upcoming_ = 0;  // of them, for the op that runs
  size_t places_ = 0;

  std::vector<Range> ranges_;
  bool is_filled_ = true;  // the segments are those of `ranges_`
  bool replaces_ = false;  // an adapter of the step has modules of its own
};

}  // namespace infeng
