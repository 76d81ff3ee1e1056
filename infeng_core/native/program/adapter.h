// LoRA adapters in memory: what the ops of a program read where rows of a step use one.
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

// A borrowed array; NULL: there is none.
struct Bytes {
  const void* data = nullptr;
  int64_t nbytes = 0;
};

// What an adapter is made from, as infeng_core.formats.adapters.packed says.
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

// What an adapter adds to one slot of a program: segments that lack only their rows, their column of u and their
// weight.
struct AdapterTensor {
  int32_t columns = 0;           // of u: the stacked ranks, in whole panels
  infeng_lora_segment shrink{};  // rank 0: no op has to make u
  std::vector<infeng_lora_segment> parts;
  infeng_range piece{};  // what shrink reads; a linear fetches the rest itself
};

// u of a token is a[id] * scaling.
struct AdapterEmbedding {
  int64_t rank = 0;
  float scaling = 1;
  const float* a = nullptr;  // (vocabulary, rank)
};

// What stands in for an op's own weight.
struct Replacement {
  std::vector<std::shared_ptr<const Weight>> weights;  // in the layout of each of the op's kernels
  Bytes vector;
};

// One copy of everything, in one arena. Never changes, so any number of steps may read it.
class Adapter {
 public:
  // Throws Error "invalid_argument" naming what does not fit the program, or "out_of_memory". Any thread, at any time
  // after the program's finish().
  Adapter(const Program& program, const AdapterSpec& spec);

  uint64_t id() const { return id_; }  // no other adapter of the process had or will have it
  uint64_t program() const { return program_; }
  int64_t nbytes() const { return arena_->nbytes(); }
  // Its products may be scaled by a weight: nothing of it replaces or rescales what the base computes.
  bool is_weighable() const { return is_weighable_; }

  // By LoraSlot::first, and of experts by the numbers behind it; NULL where the adapter changes nothing.
  const AdapterTensor* tensor(size_t place) const { return tensors_[place].get(); }
  // The most columns of u that it has for a slot, of whatever expert; -1: it changes nothing there.
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
  std::shared_ptr<Arena> arena_;
  std::vector<std::unique_ptr<AdapterTensor>> tensors_;
  std::vector<int32_t> widest_;                             // by slot
  std::vector<std::unique_ptr<Replacement>> replacements_;  // by module
  AdapterEmbedding embedding_;
};

}  // namespace infeng
