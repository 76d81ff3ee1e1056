// One linear of a model with adapters on its rows, ready to be run on one thread: what bench_gemm_lora times.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "library/library.h"
#include "weights/arena.h"
#include "weights/weight.h"

namespace infeng_bench {

// The outputs of one projection: panels begin, begin + step, ...
struct Projection {
  int32_t begin;
  int32_t step;
  int32_t panels;
};

struct Shape {
  const char* name;
  int64_t n;
  int64_t k;
  std::vector<Projection> projections;
};

// The linears of TinyLlama-1.1B, as its layers have them in memory.
const std::vector<Shape>& shapes();

enum class Way {
  base,    // the linear alone
  fused,   // shrink, then the linear that expands in its epilogue
  unfused  // the linear, then shrink, then an op of its own that expands
};

struct Setting {
  Shape shape;
  int64_t rows;
  int64_t adapters;  // row ranges, at most one for each row
  int64_t rank;
  uint32_t dtype;  // INFENG_I8 or INFENG_BF16
  Way way;
};

using Libraries = std::vector<std::shared_ptr<const infeng::Library>>;

// Kernels come from the first library that has one. Weights are int4-g64; there are as many copies of weight and
// adapters as fill `footprint` bytes, taken in turn, so that they come from memory as in a model.
class Case {
 public:
  // Throws infeng::Error where no library has a kernel.
  Case(const Libraries& libraries, const Setting& setting, int64_t footprint);

  // Runs the next copy. Throws infeng::Error.
  void run();

  int64_t weight_bytes() const;
  int64_t adapter_bytes() const;  // that one run reads

 private:
  struct Call {
    std::shared_ptr<const infeng::Kernel> kernel;
    infeng_worker worker;
    char message[200];
  };
  struct Copy {
    std::shared_ptr<const infeng::Weight> weight;
    std::vector<infeng_lora_segment> shrink;  // one for each adapter
    std::vector<infeng_lora_segment> expand;  // one for each adapter and projection
    infeng_range adapters;                    // all of it, for the hint to fetch
  };

  void bind(std::unique_ptr<Call>& call, const Libraries& libraries, infeng_problem problem);
  void make_inputs();
  Copy make_copy(const std::shared_ptr<infeng::Arena>& weights, int64_t index);
  void invoke(Call& call, const infeng_args& args);

  Setting setting_;
  infeng::Bump memory_;
  infeng_activation in_{};
  infeng_tensor out_{};
  infeng_tensor u_{};
  std::vector<Copy> copies_;
  size_t next_ = 0;
  std::unique_ptr<Call> linear_, shrink_, epilogue_;
};

}  // namespace infeng_bench
