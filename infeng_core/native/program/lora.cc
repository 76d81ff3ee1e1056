#include "program/lora.h"

#include <infeng/extension/error.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <utility>

#include "program/program.h"

namespace infeng {
namespace {

uint64_t next_program() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

template <class T>
T* room(std::optional<Arena>& arena, size_t count) {
  // Small pages, because a step touches the beginning only.
  arena.emplace(static_cast<int64_t>(count * sizeof(T)), false);
  return reinterpret_cast<T*>(arena->data());
}

template <class T>
T* begin_of(const std::optional<Arena>& arena) {
  return reinterpret_cast<T*>(arena->data());
}

}  // namespace

int64_t LoraSlot::experts() const { return routing == nullptr ? 0 : routing->experts; }

void Lora::open(uint32_t dtype, int64_t columns, int64_t ranges) {
  if (dtype != INFENG_F32 && dtype != INFENG_BF16 && dtype != INFENG_I8 && dtype != INFENG_I8T4) {
    fail(kBad, "adapters are stored as f32, bf16, int8 or int8t4");
  }
  if (columns < kPanel || columns % kPanel != 0 || columns > 1 << 20) {
    fail(kBad, "u has a multiple of 16 columns, not ", columns);
  }
  if (ranges < 1 || ranges > 1 << 20) fail(kBad, "max_ranges is 1 to ", 1 << 20, ", not ", ranges);
  dtype_ = dtype;
  columns_ = columns;
  most_ranges_ = ranges;
  program_ = next_program();
}

int Lora::add_slot(LoraSlot slot) {
  for (const LoraSlot& other : slots_) {
    if (other.name == slot.name) fail(kBad, "there is a LoRA slot ", slot.name, " already");
  }
  const int index = static_cast<int>(slots_.size());
  if (slot.is_embedding) {
    if (embedding_slot_ >= 0) fail(kBad, "there is a LoRA slot for the embeddings already");
    embedding_slot_ = index;
  }
  slot.first = places_;
  places_ += static_cast<size_t>(std::max<int64_t>(slot.experts(), 1));
  slots_.push_back(std::move(slot));
  return index;
}

void Lora::set_expand(int slot, Op& op) {
  slots_[static_cast<size_t>(slot)].expand = &op;
  op.lora_slot = slot;
}

void Lora::add_module(std::string name, Op& op) {
  op.module = static_cast<int>(modules_.size());
  for (size_t i = 0; i < modules_.size(); ++i) {
    if (modules_[i].name != name) continue;
    // Norms may share a module: vectors have no kernel's own layout.
    const Op& other = *modules_[i].op;
    if (op.vector_at == nullptr || other.vector_at == nullptr || op.problem.k != other.problem.k) {
      fail(kBad, "there is a module ", name, " already");
    }
    op.module = static_cast<int>(i);
    return;
  }
  modules_.push_back({std::move(name), &op});
}

void Lora::finish(const std::vector<std::unique_ptr<Op>>& ops) {
  if (!is_open()) return;
  for (const LoraSlot& slot : slots_) {
    if (slot.expand == nullptr) fail(kBad, "LoRA slot ", slot.name, " has no op with its LORA step");
  }
  const auto ranges = static_cast<size_t>(most_ranges_);
  const size_t slots = std::max<size_t>(slots_.size(), 1);
  room<infeng_lora_segment>(segments_, ranges * slots * (1 + kMostParts));
  room<infeng_range>(pieces_, ranges * slots);
  room<infeng_lora_segment>(slice_, ranges * kMostParts);
  int64_t experts = 0;
  for (const LoraSlot& slot : slots_) experts = std::max(experts, slot.experts());
  if (experts > 0) room<infeng_lora_segment>(of_experts_, ranges * static_cast<size_t>(experts) * kMostParts);
  ranges_.reserve(ranges);
  const LoraSlot* upcoming = nullptr;  // the slot of the next linear
  for (auto op = ops.rbegin(); op != ops.rend(); ++op) {
    if ((*op)->problem.op == INFENG_OP_LINEAR && upcoming != nullptr) fetches_.push_back({op->get(), upcoming});
    for (const LoraSlot& slot : slots_) {
      if (slot.shrink == op->get()) upcoming = slot.routing == nullptr ? &slot : nullptr;
    }
  }
}

Lora::Range Lora::range_of(const AdapterRows& rows, size_t index, int64_t row_count,
                           std::span<const int32_t> samples) const {
  const auto [begin, end, weight, adapter] = rows;
  const auto name = [index] { return "adapters[" + std::to_string(index) + "]"; };
  if (adapter == nullptr || adapter->program() != program_) {
    fail(kBad, name(), ": was not made for this program");
  }
  if (begin < 0 || end <= begin || end > row_count) {
    fail(kBad, name(), ": rows [", begin, ", ", end, ") of ", row_count);
  }
  if (!std::isfinite(weight)) fail(kBad, name(), ": its weight is not finite");
  if (weight != 1 && !adapter->is_weighable()) {
    fail(kBad, name(), ": replaces, rescales or shifts what the model computes, so its weight is 1, not ", weight);
  }
  const auto sample = [&](int32_t row) {
    return static_cast<int32_t>(std::lower_bound(samples.begin(), samples.end(), row) - samples.begin());
  };
  return {begin, end, sample(begin), sample(end), weight, false, true, adapter.get(), adapter->id()};
}

void Lora::take(std::span<const AdapterRows> adapters, int64_t rows, std::span<const int32_t> samples) {
  if (adapters.empty() && ranges_.empty()) return;
  if (adapters.size() > static_cast<size_t>(most_ranges_)) {
    fail(kBad, "adapters: at most ", most_ranges_, " ranges of rows, not ", adapters.size());
  }
  if (!adapters.empty() && !std::is_sorted(samples.begin(), samples.end())) {
    fail(kBad, "sample_rows: must ascend where rows have adapters");
  }
  bool is_same = is_filled_ && adapters.size() == ranges_.size();
  is_filled_ = false;
  ranges_.resize(adapters.size());  // within what finish() reserved
  replaces_ = false;
  size_t replacing = 0;  // the last range whose adapter replaces modules
  for (size_t i = 0; i < adapters.size(); ++i) {
    Range range = range_of(adapters[i], i, rows, samples);
    if (i > 0) {
      const Range& before = ranges_[i - 1];
      range.combines = range.begin == before.begin && range.end == before.end;
      if (!range.combines && range.begin < before.end) {
        fail(kBad, "adapters[", i, "]: rows [", range.begin, ", ", range.end, ") are not behind [", before.begin, ", ",
             before.end, ")");
      }
    }
    if (range.adapter->replaces()) {
      if (replaces_ && ranges_[replacing].begin == range.begin) {
        fail(kBad, "adapters[", i, "]: one adapter with modules of its own is possible for a row, not two");
      }
      replacing = i;
      replaces_ = true;
    }
    for (size_t j = 0; j < i && range.is_first; ++j) range.is_first = ranges_[j].id != range.id;
    is_same = is_same && range == ranges_[i];
    ranges_[i] = range;
  }
  is_filled_ = is_same;
}

void Lora::patch(const int32_t* tokens, float* u, int64_t stride) {
  if (!is_filled_) {
    auto* next = begin_of<infeng_lora_segment>(segments_);
    auto* piece = begin_of<infeng_range>(pieces_);
    for (size_t slot = 0; slot < slots_.size(); ++slot) {
      if (slots_[slot].routing == nullptr) {
        fill(slots_[slot], next, piece);
      } else {
        fill_experts(slot);
      }
    }
    for (const Fetch& fetch : fetches_) {
      fetch.op->fetch.ranges = fetch.slot->pieces;
      fetch.op->fetch.count = fetch.slot->piece_count;
    }
    is_filled_ = true;
  }
  if (embedding_slot_ >= 0) gather(tokens, u, stride);
}

// `columns` of u are in use by the adapters of a range.
void Lora::check_columns(const Range& range, int64_t columns, const LoraSlot& slot) const {
  if (columns <= columns_) return;
  fail(kBad, "the adapters of rows [", range.begin, ", ", range.end, ") have more than ", columns_,
       " stacked rank rows in ", slot.name);
}

// Rows have not been routed to experts yet, so this only finds out whether the slot is used and whether u has enough
// columns. Of adapters that combine, each counts with its widest expert.
void Lora::fill_experts(size_t slot) {
  bool is_used = false;
  int64_t column = 0;
  for (const Range& range : ranges_) {
    if (!range.combines) column = 0;
    const int32_t widest = range.adapter->widest(slot);
    if (widest < 0) continue;
    is_used = true;
    column += widest;
    check_columns(range, column, slots_[slot]);
  }
  slots_[slot].shrink->args.shrink.segment_count = is_used ? 1 : 0;
}

bool Lora::is_used(int slot) const {
  return slot >= 0 && slots_[static_cast<size_t>(slot)].shrink->args.shrink.segment_count > 0;
}

std::span<const infeng_lora_segment> Lora::of_expert(int slot, int64_t expert, std::span<const int32_t> rows,
                                                     bool shrinks) {
  const size_t place = slots_[static_cast<size_t>(slot)].first + static_cast<size_t>(expert);
  auto* const first = begin_of<infeng_lora_segment>(of_experts_) + upcoming_;
  infeng_lora_segment* next = first;
  int32_t column = 0;
  for (const Range& range : ranges_) {
    if (!range.combines) column = 0;
    const AdapterTensor* tensor = range.adapter->tensor(place);
    if (tensor == nullptr) continue;
    const auto at = [&](int32_t row) {
      return static_cast<int32_t>(std::lower_bound(rows.begin(), rows.end(), row) - rows.begin());
    };
    const int32_t begin = at(range.begin), end = at(range.end);
    const auto put = [&](const infeng_lora_segment& segment) {
      *next = segment;
      next->row_begin = begin;
      next->row_end = end;
      next->u_column += column;
      if (shrinks) next->weight = range.weight;
      ++next;
    };
    if (begin < end && shrinks && tensor->shrink.rank > 0) put(tensor->shrink);
    if (begin < end && !shrinks) std::for_each(tensor->parts.begin(), tensor->parts.end(), put);
    column += tensor->columns;
  }
  upcoming_ += static_cast<size_t>(next - first);
  return {first, next};
}

void Lora::fill(LoraSlot& slot, infeng_lora_segment*& next, infeng_range*& piece) {
  infeng_lora_segment* const shrink = next;
  infeng_lora_segment* const expand = next + (slot.shrink != nullptr ? ranges_.size() : 0);
  infeng_lora_segment* s = shrink;
  infeng_lora_segment* e = expand;
  slot.pieces = piece;
  int32_t column = 0;
  for (const Range& range : ranges_) {
    if (!range.combines) column = 0;
    const AdapterTensor* tensor = range.adapter->tensor(slot.first);
    const int32_t begin = slot.samples ? range.sample_begin : range.begin;
    const int32_t end = slot.samples ? range.sample_end : range.end;
    if (tensor == nullptr || begin == end) continue;
    check_columns(range, column + tensor->columns, slot);
    if (tensor->shrink.rank > 0) {
      *s = tensor->shrink;
      s->row_begin = begin;
      s->row_end = end;
      s->u_column = column;
      s->weight = range.weight;
      ++s;
    }
    for (const infeng_lora_segment& part : tensor->parts) {
      *e = part;
      e->row_begin = begin;
      e->row_end = end;
      e->u_column += column;
      ++e;
    }
    column += tensor->columns;
    if (range.is_first) *piece++ = tensor->piece;
  }
  slot.piece_count = piece - slot.pieces;
  if (slot.shrink != nullptr) {
    slot.shrink->args.shrink.segments = shrink;
    slot.shrink->args.shrink.segment_count = static_cast<int32_t>(s - shrink);
  }
  slot.segments = {expand, e};
  slot.expand->use_segments(slot.segments);
  next = e;
}

// Writes u of rows whose adapter changes the embeddings: the token's row of A, scaled.
void Lora::gather(const int32_t* tokens, float* u, int64_t stride) const {
  int32_t column = 0;
  for (const Range& range : ranges_) {
    if (!range.combines) column = 0;
    const size_t place = slots_[static_cast<size_t>(embedding_slot_)].first;
    const AdapterTensor* tensor = range.adapter->tensor(place);
    if (tensor == nullptr) continue;
    const auto [rank, scaling, a] = range.adapter->embedding();
    for (int32_t row = range.begin; row < range.end; ++row) {
      const float* from = a + tokens[row] * rank;
      float* to = u + row * stride + column;
      for (int64_t r = 0; r < rank; ++r) to[r] = (from[r] * scaling) * range.weight;
    }
    column += tensor->columns;
  }
}

bool Lora::changes_embeddings() const {
  if (embedding_slot_ < 0) return false;
  const size_t place = slots_[static_cast<size_t>(embedding_slot_)].first;
  return std::any_of(ranges_.begin(), ranges_.end(),
                     [place](const Range& range) { return range.adapter->tensor(place) != nullptr; });
}

bool Lora::replaces(const Op& op) const {
  if (!replaces_ || op.module < 0) return false;
  return std::any_of(ranges_.begin(), ranges_.end(), [&](const Range& range) {
    const bool has_rows = !op.samples || range.sample_begin < range.sample_end;
    return has_rows && range.adapter->replacement(static_cast<size_t>(op.module)) != nullptr;
  });
}

const Replacement* Lora::replacement(const Op& op, int64_t begin, int64_t* end) const {
  for (const Range& range : ranges_) {
    const int64_t first = op.samples ? range.sample_begin : range.begin;
    const int64_t last = op.samples ? range.sample_end : range.end;
    const Replacement* found = range.adapter->replacement(static_cast<size_t>(op.module));
    if (found == nullptr || last <= begin || first == last) continue;
    *end = first > begin ? first : last;
    return first > begin ? nullptr : found;
  }
  return nullptr;
}

std::span<const infeng_lora_segment> Lora::segments(const Op& op, int64_t begin, int64_t end) const {
  auto* const first = begin_of<infeng_lora_segment>(slice_);
  infeng_lora_segment* next = first;
  for (infeng_lora_segment segment : slot(op.lora_slot).segments) {
    segment.row_begin = static_cast<int32_t>(std::max<int64_t>(segment.row_begin, begin) - begin);
    segment.row_end = static_cast<int32_t>(std::min<int64_t>(segment.row_end, end) - begin);
    if (segment.row_begin < segment.row_end) *next++ = segment;
  }
  return {first, next};
}

}  // namespace infeng
