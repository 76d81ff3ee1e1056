#include "program/adapter.h"

#include <infeng/extension/error.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "program/layout.h"
#include "program/lora.h"
#include "program/program.h"
#include "vocabulary/names.h"

namespace infeng {
namespace {

constexpr int64_t kMostRank = 256;  // of one projection

uint64_t next_id() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

void check_size(const std::string& where, const char* what, const Bytes& bytes, int64_t expected) {
  if (bytes.nbytes != expected) fail(kBad, where, ": ", what, " has ", bytes.nbytes, " bytes, not ", expected);
}

}  // namespace

// Checks and lays out every array before copying any, because the arena needs its size first.
class Adapter::Builder {
 public:
  Builder(Adapter& adapter, const Program& program, const AdapterSpec& spec)
      : adapter_(adapter), lora_(program.lora()), spec_(spec), pages_(program.pages()), device_(program.device()) {}

  void build() {
    adapter_.program_ = lora_.program();
    adapter_.tensors_.resize(lora_.places());
    adapter_.widest_.assign(lora_.slots().size(), -1);
    adapter_.replacements_.resize(lora_.modules().size());
    for (const auto& tensor : spec_.tensors) add(tensor);
    if (spec_.embedding) add(*spec_.embedding);
    for (const auto& saved : spec_.saved_tensors) add(saved);
    for (const auto& saved : spec_.saved_vectors) add(saved);
    copy();
    for (const auto& [module, weight] : weights_) keep_layouts(module, weight);
  }

 private:
  struct Copy {
    Bytes from;
    int64_t at;       // in the arena
    const void** to;  // gets the copy's address
  };

  // Lays out `bytes`; copy() writes their address in the arena to `to`.
  template <class T>
  void put(const Bytes& bytes, const T*& to) {
    to = nullptr;
    if (bytes.data == nullptr || bytes.nbytes == 0) return;
    copies_.push_back({bytes, size_, reinterpret_cast<const void**>(&to)});
    size_ = round_up(size_ + bytes.nbytes, kLine);
  }

  struct Place {
    const LoraSlot& slot;
    size_t index;  // among the adapter's tensors
  };

  // "layers.0.experts.down_proj[3]" names expert 3 of slot "layers.0.experts.down_proj".
  Place place_of(const std::string& name, bool is_embedding) const {
    const size_t bracket = name.find('[');
    const std::string stem = name.substr(0, bracket);
    const size_t expert = bracket == std::string::npos ? 0 : std::strtoul(name.c_str() + bracket + 1, nullptr, 10);
    for (const LoraSlot& slot : lora_.slots()) {
      if (slot.is_embedding != is_embedding || (!is_embedding && slot.name != stem)) continue;
      const auto count = static_cast<size_t>(slot.experts());
      if ((count > 0) != (bracket != std::string::npos) || (count > 0 && expert >= count)) break;
      if (adapter_.tensors_[slot.first + expert] != nullptr) fail(kBad, name, ": the adapter names it twice");
      return {slot, slot.first + expert};
    }
    fail(kBad, name, ": the model has no such tensor that low-rank products can be added to");
  }

  size_t module_of(const std::string& name, bool is_vector) const {
    const auto modules = lora_.modules();
    for (size_t index = 0; index < modules.size(); ++index) {
      if (modules[index].name != name) continue;
      if (adapter_.replacements_[index] != nullptr) fail(kBad, name, ": the adapter names it twice");
      if ((modules[index].op->vector_at != nullptr) != is_vector) {
        fail(kBad, name, ": is ", is_vector ? "a matrix, not a vector" : "a vector, not a matrix");
      }
      return index;
    }
    fail(kBad, name, ": the model has no such module that an adapter can replace");
  }

  void add(const AdapterSpec::Tensor& tensor) {
    const auto [slot, index] = place_of(tensor.name, false);
    auto out = std::make_unique<AdapterTensor>();
    const int64_t rows = round_up(tensor.rank, kPanel);
    if (tensor.rank < 0 || rows > lora_.columns()) {
      fail(kBad, tensor.name, ": ", tensor.rank, " stacked rank rows, at most ", lora_.columns(), " are possible");
    }
    check_size(tensor.name, "a", tensor.a, stacked_bytes_of(spec_.dtype, tensor.rank, slot.k));
    check_size(tensor.name, "scaling", tensor.scaling, rows * 4);
    out->columns = static_cast<int32_t>(rows);
    int32_t& widest = adapter_.widest_[static_cast<size_t>(&slot - lora_.slots().data())];
    widest = std::max(widest, out->columns);
    out->shrink.rank = static_cast<int32_t>(tensor.rank);
    out->shrink.dtype = spec_.dtype;
    const int64_t begin = size_;
    put(tensor.a, out->shrink.a);
    put(tensor.scaling, out->shrink.scaling);
    pieces_.push_back({out.get(), begin, size_});
    add_parts(tensor.name, slot, tensor.rank, tensor.parts, *out);
    adapter_.tensors_[index] = std::move(out);
  }

  void add(const AdapterSpec::Embedding& embedding) {
    const std::string name = "embedding";
    const auto [slot, index] = place_of(name, true);
    if (embedding.rank < 1 || embedding.rank > kMostRank) {
      fail(kBad, name, ": a rank is 1 to ", kMostRank, ", not ", embedding.rank);
    }
    check_size(name, "a", embedding.a, slot.k * embedding.rank * 4);
    auto out = std::make_unique<AdapterTensor>();
    out->columns = static_cast<int32_t>(round_up(embedding.rank, kPanel));
    adapter_.embedding_.rank = embedding.rank;
    adapter_.embedding_.scaling = embedding.scaling;
    if (device_ == nullptr) {
      put(embedding.a, adapter_.embedding_.a);
    } else {  // the host gathers its rows
      const auto* values = static_cast<const float*>(embedding.a.data);
      adapter_.embedding_values_.assign(values, values + slot.k * embedding.rank);
      adapter_.embedding_.a = adapter_.embedding_values_.data();
    }
    pieces_.push_back({out.get(), size_, size_});
    add_parts(name, slot, embedding.rank, {embedding.part}, *out);
    adapter_.tensors_[index] = std::move(out);
  }

  void add_parts(const std::string& name, const LoraSlot& slot, int64_t stacked,
                 const std::vector<AdapterSpec::Part>& parts, AdapterTensor& out) {
    if (parts.size() > Lora::kMostParts) {
      fail(kBad, name, ": ", parts.size(), " projections, at most ", Lora::kMostParts, " are possible");
    }
    out.parts.reserve(parts.size());  // put() keeps addresses of its elements
    for (size_t i = 0; i < parts.size(); ++i) {
      add_part(name + ", projection " + std::to_string(i), slot, stacked, parts[i], out.parts.emplace_back());
    }
  }

  void add_part(const std::string& where, const LoraSlot& slot, int64_t stacked, const AdapterSpec::Part& part,
                infeng_lora_segment& out) {
    if (part.rank < 0 || part.rank > kMostRank) fail(kBad, where, ": a rank is 0 to ", kMostRank, ", not ", part.rank);
    if (spec_.dtype == INFENG_I8T4 && (part.rank % kTailRows != 0 || part.u_column % kTailRows != 0)) {
      fail(kBad, where, ": ranks of ", name_of(Vocabulary::dtype, spec_.dtype), " are multiples of ", kTailRows,
           ", not ", part.rank, " from column ", part.u_column, " on");
    }
    if (part.u_column < 0 || part.u_column > stacked - part.rank) {
      fail(kBad, where, ": reads columns [", part.u_column, ", ", part.u_column + part.rank, ") of ", stacked);
    }
    if (part.panels < 1 || part.panel_step < 1 || part.first_panel < 0 || part.first_panel >= slot.panels ||
        (part.panels - 1) > (slot.panels - 1 - part.first_panel) / part.panel_step) {
      fail(kBad, where, ": ", part.panels, " panels from ", part.first_panel, " on in steps of ", part.panel_step,
           " do not fit in ", slot.panels);
    }
    const int64_t outputs = part.panels * kPanel;
    check_size(where, "b", part.b, part.panels * expand_bytes_of(spec_.dtype, part.rank));
    const bool has_scales = spec_.dtype == INFENG_I8 || spec_.dtype == INFENG_I8T4;
    const bool is_scaled = has_scales && part.rank > 0;
    if (part.b_scale.data != nullptr || is_scaled) check_size(where, "b_scale", part.b_scale, outputs * 2);
    if (part.row_scale.data != nullptr) check_size(where, "row_scale", part.row_scale, outputs * 4);
    if (part.bias.data != nullptr) check_size(where, "bias", part.bias, outputs * 4);
    out = {};
    out.rank = static_cast<int32_t>(part.rank);
    out.dtype = spec_.dtype;
    out.u_column = static_cast<int32_t>(part.u_column);
    out.weight = 1;
    out.panel_begin = static_cast<int32_t>(part.first_panel);
    out.panel_step = static_cast<int32_t>(part.panel_step);
    out.panel_count = static_cast<int32_t>(part.panels);
    put(part.b, out.b);
    if (has_scales) put(part.b_scale, out.b_scale);
    put(part.row_scale, out.row_scale);
    put(part.bias, out.bias);
    if (part.row_scale.data != nullptr || part.bias.data != nullptr) adapter_.is_weighable_ = false;
  }

  void add(const AdapterSpec::SavedTensor& saved) {
    const size_t index = module_of(saved.name, false);
    const infeng_weight& own = lora_.modules()[index].op->weight->abi;
    const infeng_weight& given = saved.weight->abi;
    if (given.format != own.format || given.n != own.n || given.k != own.k || given.panels != own.panels) {
      fail(kBad, saved.name, ": is ", name_of(Vocabulary::weight, given.format), " ", given.n, "x", given.k,
           ", the model's own is ", name_of(Vocabulary::weight, own.format), " ", own.n, "x", own.k);
    }
    auto weight = std::make_shared<Weight>(*saved.weight);
    weight->owner = nullptr;
    put({given.data, given.panels * given.panel_bytes}, weight->abi.data);
    weights_.emplace_back(index, std::move(weight));
    replace(index);
  }

  void add(const AdapterSpec::SavedVector& saved) {
    const size_t index = module_of(saved.name, true);
    check_size(saved.name, "the vector", saved.values, lora_.modules()[index].op->vector_bytes);
    Replacement& replacement = replace(index);
    replacement.vector.nbytes = saved.values.nbytes;
    put(saved.values, replacement.vector.data);
  }

  Replacement& replace(size_t module) {
    adapter_.is_weighable_ = false;
    adapter_.replaces_ = true;
    adapter_.replacements_[module] = std::make_unique<Replacement>();
    return *adapter_.replacements_[module];
  }

  void copy() {
    adapter_.memory_ = std::make_shared<Storage>(size_, device_, size_ >= kHugePage, pages_);
    std::byte* base = adapter_.memory_->data();
    std::vector<std::byte> staged(device_ == nullptr ? 0 : static_cast<size_t>(size_));
    std::byte* const to = device_ == nullptr ? base : staged.data();
    for (const Copy& each : copies_) {
      std::memcpy(to + each.at, each.from.data, static_cast<size_t>(each.from.nbytes));
      *each.to = base + each.at;
    }
    if (device_ != nullptr) adapter_.memory_->write(base, staged.data(), size_);
    for (const Piece& piece : pieces_) piece.tensor->piece = {base + piece.begin, piece.end - piece.begin};
  }

  void keep_layouts(size_t module, const std::shared_ptr<Weight>& weight) {
    weight->owner = adapter_.memory_;
    weight->device = device_.get();
    for (const Binding& binding : lora_.modules()[module].op->bindings) {
      adapter_.replacements_[module]->weights.push_back(in_layout_of(*binding.kernel, weight, pages_));
    }
  }

  struct Piece {
    AdapterTensor* tensor;
    int64_t begin;
    int64_t end;
  };

  Adapter& adapter_;
  const Lora& lora_;
  const AdapterSpec& spec_;
  const Pages& pages_;
  const DevicePtr& device_;
  int64_t size_ = 0;
  std::vector<Copy> copies_;
  std::vector<Piece> pieces_;
  std::vector<std::pair<size_t, std::shared_ptr<Weight>>> weights_;
};

Adapter::Adapter(const Program& program, const AdapterSpec& spec) : id_(next_id()), program_(0) {
  const Lora& lora = program.lora();
  if (!program.is_finished()) fail("not_finished", "call finish() before adapters are made");
  if (!lora.is_open()) fail(kBad, "the program was made without adapters");
  if (spec.dtype != lora.dtype()) {
    fail(kBad, "the adapter is stored as ", name_of(Vocabulary::dtype, spec.dtype), ", the program reads ",
         name_of(Vocabulary::dtype, lora.dtype()));
  }
  Builder(*this, program, spec).build();
}

}  // namespace infeng
