// LoRA adapters in memory, in the form that a program's ops read.
#pragma once

#include <infeng/abi.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "weights/arena.h"
#include "weights/weight.h"

namespace infeng {

class Program;

// A borrowed array; NULL if absent.
struct Bytes {
  const void* data = nullptr;
  int64_t nbytes = 0;
};

// The arrays of an adapter; infeng_core.formats.adapters.packed describes them.
struct AdapterSpec {
  struct Part {
    int64_t rank = 0;
    int64_t u_column = 0;
    int64_t first_panel = 0;
    int64_t panel_step = 1;
    int64_t panels = 0;
    Bytes b, b_scale, row_scale, bias;
  };
  struct Tensor {
    std::string name;
    int64_t rank = 0;
    Bytes a, scaling;
    std::vector<Part> parts;
  };
  struct Embedding {
    int64_t rank = 0;
    Bytes a;
    float scaling = 1;
    Part part;
  };
  struct SavedTensor {
    std::string name;
    std::shared_ptr<const Weight> weight;
  };
  struct SavedVector {
    std::string name;
    Bytes values;
  };

  uint32_t dtype = 0;
  std::vector<Tensor> tensors;
  std::optional<Embedding> embedding;
  std::vector<SavedTensor> saved_tensors;
  std::vector<SavedVector> saved_vectors;
};

// An adapter's products in one slot of a program, as templates of segments: a step adds rows, the column of u and the
// weight.
struct AdapterTensor {
  int32_t columns = 0;           // of u: the stacked ranks, in whole panels
  infeng_lora_segment shrink{};  // rank 0: SHRINK has nothing to do
  std::vector<infeng_lora_segment> parts;
  infeng_range piece{};  // memory that shrink reads; the linear prefetches the rest itself
};

// The embedding's products: u of a token is a[id] * scaling.
struct AdapterEmbedding {
  int64_t rank = 0;
  float scaling = 1;
  const float* a = nullptr;  // (vocabulary, rank)
};

// An adapter's replacement for an op's weight.
struct Replacement {
  std::vector<std::shared_ptr<const Weight>> weights;  // in the layout of each of the op's kernels
  Bytes vector;
};

// An immutable copy of an adapter's arrays in one piece of memory; any number of steps may read it at once.
class Adapter {
 public:
  // May be called by any thread after the program's finish(). Throws Error "invalid_argument" naming the array that
  // does not fit the program, or "out_of_memory".
  Adapter(const Program& program, const AdapterSpec& spec);

  uint64_t id() const { return id_; }  // unique in the process, never used again
  uint64_t program() const { return program_; }
  int64_t nbytes() const { return memory_->nbytes(); }
  // Whether its products may be scaled by a weight: it only adds, and neither replaces nor rescales what the base
  // model computes.
  bool is_weighable() const { return is_weighable_; }

  // `place`: LoraSlot::first, plus the expert's number. NULL where the adapter changes nothing.
  const AdapterTensor* tensor(size_t place) const { return tensors_[place].get(); }
  // The most columns of u that any expert of a slot has; -1 where the adapter changes nothing.
  int32_t widest(size_t slot) const { return widest_[slot]; }
  const Replacement* replacement(size_t module) const { return replacements_[module].get(); }
  bool replaces() const { return replaces_; }
  const AdapterEmbedding& embedding() const { return embedding_; }

 private:
  class Builder;

  uint64_t id_;
  uint64_t program_;
  bool is_weighable_ = true;
  bool replaces_ = false;
  std::shared_ptr<Storage> memory_;
  std::vector<float> embedding_values_;  // of a device's adapter, for the host
  std::vector<std::unique_ptr<AdapterTensor>> tensors_;
  std::vector<int32_t> widest_;                             // by slot
  std::vector<std::unique_ptr<Replacement>> replacements_;  // by module
  AdapterEmbedding embedding_;
};

}  // namespace infeng
