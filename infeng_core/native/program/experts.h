// Linears of experts: the routing of a step's rows, and one kernel call for each expert with rows.
#pragma once

#include <infeng/abi.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace infeng {

class Lora;
struct Kernel;
struct Op;

// The result of ROUTE for all rows of a step; the layers of a model share one.
struct Routing {
  int64_t experts = 0;
  int64_t top_k = 0;
  struct Arrays {
    int32_t* chosen = nullptr;  // (rows, top_k): experts
    float* weights = nullptr;   // (rows, top_k): their shares
    int32_t* places = nullptr;  // (rows, top_k): places of the copies, which are sorted by expert
    int32_t* begin = nullptr;   // (experts + 1): expert e has places [begin[e], begin[e + 1])
  };
  Arrays for_kernels;
  Arrays for_host;  // on a device, the host's copies of `places` and `begin`; else the same

  int64_t rows_of(int64_t expert) const { return for_host.begin[expert + 1] - for_host.begin[expert]; }
  int64_t used() const;
};

// The most epilogue steps of a linear of experts.
constexpr size_t kMostExpertSteps = 4;

// A call of a LINEAR or SHRINK kernel on the rows of one expert. The args point into the struct, so it does not move.
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
  int64_t first;  // its tiles are [first, last) of all calls' tiles
  int64_t last;
};

// The calls of the current op, in the order of the experts; experts without rows have none.
class ExpertCalls {
 public:
  // Called before the first step; an op has up to `experts` calls on `copies` rows in all.
  void reserve(int64_t experts, int64_t copies);

  // Called by one thread while the others wait. False if the routing is not valid for `rows` rows.
  bool make(Op& op, int64_t rows, Lora& lora);

  int64_t tiles() const { return used_ == 0 ? 0 : calls_[used_ - 1].last; }

  // Runs tiles [first, last) of all calls.
  infeng_status run(int64_t first, int64_t last, infeng_worker* worker) const;

 private:
  bool sort_rows(const Routing& routing, int64_t rows);
  void fill(ExpertCall& call, const Op& op, int64_t expert, Lora& lora) const;
  void fill_linear(ExpertCall& call, const Op& op, int64_t expert, Lora& lora) const;

  std::unique_ptr<ExpertCall[]> calls_;
  size_t room_ = 0;
  size_t used_ = 0;
  std::vector<int32_t> rows_;  // place of a copy -> its row of the batch; valid if `has_adapters_`
  bool has_adapters_ = false;
};

}  // namespace infeng
