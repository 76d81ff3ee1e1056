// An infeng_problem that owns its epilogue list.
#pragma once

#include <infeng/abi.h>

#include <utility>
#include <vector>

namespace infeng {

// The need that follows from a step: its function.
inline uint64_t needs_of(const infeng_epilogue& step) {
  return step.function == INFENG_FUNCTION_IDENTITY ? 0 : INFENG_NEED_BIT(INFENG_NEED_FUNCTION(step.function));
}

class Problem {
 public:
  infeng_problem abi{};

  Problem() { abi.struct_size = sizeof abi; }
  Problem(const Problem& other) : abi(other.abi), steps_(other.steps_) { link(); }
  Problem& operator=(Problem other) {
    abi = other.abi;
    steps_ = std::move(other.steps_);
    link();
    return *this;
  }

  const std::vector<infeng_epilogue>& steps() const { return steps_; }

  void add(const infeng_epilogue& step) {
    steps_.push_back(step);
    steps_.back().struct_size = sizeof step;
    abi.needs |= needs_of(step);
    link();
  }

 private:
  void link() {
    list_.clear();
    for (const infeng_epilogue& step : steps_) list_.push_back(&step);
    abi.epilogues = list_.empty() ? nullptr : list_.data();
    abi.epilogue_count = static_cast<uint32_t>(list_.size());
  }

  std::vector<infeng_epilogue> steps_;
  std::vector<const infeng_epilogue*> list_;
};

}  // namespace infeng
