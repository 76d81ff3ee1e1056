// The places in a program that adapters change, and the adapters that the rows of a step use.
//
// A slot is a linear (or the embeddings) to which adapters add low-rank products: a SHRINK op computes u, a LORA step
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
  const Routing* routing = nullptr;  // of a linear of experts; each expert has products of its own
  Op* expand = nullptr;              // the op with the LORA step
  size_t first = 0;                  // its place among the tensors of an adapter; that of expert 0

  int64_t experts() const;  // 0 without a routing
  // State of the current step: the segments for LORA, and the memory of its adapters.
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

  // Called before finish(). `columns`: of u. `ranges`: the most ranges of rows in a step. Throw Error
  // "invalid_argument".
  void open(uint32_t dtype, int64_t columns, int64_t ranges);
  int add_slot(LoraSlot slot);
  void set_expand(int slot, Op& op);  // `op`: its epilogue list begins with LORA
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

  // One step calls take(), which checks the ranges, then patch(), which writes the segments of all ops unless the
  // ranges equal those of the step before. Both throw Error "invalid_argument".
  void take(std::span<const AdapterRows> adapters, int64_t rows, std::span<const int32_t> samples);
  void patch(const int32_t* tokens, float* u, int64_t stride);

  bool is_used() const { return !ranges_.empty(); }  // whether a row of the step uses an adapter
  // Whether adapters of the step change the embeddings, so that patch() writes to u.
  bool changes_embeddings() const;
  bool replaces(const Op& op) const;
  // Returns the replacement for the op's row `begin`, NULL if it uses the op's own weight; `end` becomes the end of the
  // rows that share it.
  const Replacement* replacement(const Op& op, int64_t begin, int64_t* end) const;
  // Whether rows of the step use products of the slot.
  bool is_used(int slot) const;
  // Returns the segments of an expert for SHRINK (`shrinks`) or LORA. `rows`: the expert's rows of the batch,
  // ascending. The segments stay valid until begin_experts(), which is called for each op.
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
    bool combines;  // has the same rows as the range before
    bool is_first;  // the first range of its adapter
    const Adapter* adapter;
    uint64_t id;

    bool operator==(const Range&) const = default;
  };
  struct Fetch {
    Op* op;
    const LoraSlot* slot;
  };

  Range range_of(const AdapterRows& rows, size_t index, int64_t row_count, std::span<const int32_t> samples) const;
  void check_columns(const Range& range, int64_t columns, const LoraSlot& slot) const;
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

  // Sized for the most segments that a step can have; unused pages are never touched.
  std::optional<Arena> segments_;
  std::optional<Arena> pieces_;
  std::optional<Arena> slice_;
  std::optional<Arena> of_experts_;
  size_t upcoming_ = 0;  // the next free segment of `of_experts_`
  size_t places_ = 0;

  std::vector<Range> ranges_;
  bool is_filled_ = true;  // the segments match `ranges_`
  bool replaces_ = false;  // an adapter of the step replaces modules
};

}  // namespace infeng
