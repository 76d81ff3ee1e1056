// Linears of experts: which rows a step gives to which expert, and the calls of linear kernels that follow from it.
#pragma once

#include <infeng/abi.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace infeng {

class Lora;
struct Kernel;
struct Op;

// What ROUTE writes and COMBINE reads, for all rows of a step. Layers take turns on it.
struct Routing {
  int64_t experts = 0;
  int64_t top_k = 0;
  int32_t* chosen = nullptr;  // (rows, top_k)
  float* weights = nullptr;   // (rows, top_k)
  int32_t* places = nullptr;  // (rows, top_k)
  int32_t* begin = nullptr;   // (experts + 1)

  int64_t rows_of(int64_t expert) const { return begin[expert + 1] - begin[expert]; }
  int64_t used() const;
};

// The most steps that may follow a linear of experts.
constexpr size_t kMostExpertSteps = 4;

// The call of a kernel of LINEAR or SHRINK on the rows of one expert. What the args point at is here, so it does not
// move.
struct ExpertCall {
  union {
    infeng_args common;
    infeng_linear_args args;
    infeng_shrink_args shrink;
  };
  infeng_activation in;
  infeng_weight weight;
  infeng_operand_epilogue bias;
  infeng_quantize_epilogue quantize;
  infeng_lora_epilogue lora;
  infeng_activation act;
  const infeng_epilogue* list[kMostExpertSteps];
  const Kernel* kernel;
  int64_t first;  // of its tiles among those of all calls
  int64_t last;
};

// The calls of the op that runs, in the order of the experts: one for each that has rows.
class ExpertCalls {
 public:
  // Before the first step; an op has up to `experts` calls, on `copies` rows together.
  void reserve(int64_t experts, int64_t copies);

  // By one thread while the others wait. False if the routing is not one of `rows` rows.
  bool make(Op& op, int64_t rows, Lora& lora);

  int64_t tiles() const { return used_ == 0 ? 0 : calls_[used_ - 1].last; }

  // Tiles [first, last) of all calls.
  infeng_status run(int64_t first, int64_t last, infeng_worker* worker) const;

 private:
  bool sort_rows(const Routing& routing, int64_t rows);
  void fill(ExpertCall& call, const Op& op, int64_t expert, Lora& lora) const;
  void fill_linear(ExpertCall& call, const Op& op, int64_t expert, Lora& lora) const;

  std::unique_ptr<ExpertCall[]> calls_;
  size_t room_ = 0;
  size_t used_ = 0;
  std::vector<int32_t> rows_;  // of the batch, of each copy in its place; where adapters change the op
  bool has_adapters_ = false;
};

}  // namespace infeng
