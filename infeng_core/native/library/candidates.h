// The tokens of one row of logits that sampling chooses from, with their integer weights: docs/numerics.md, "Sampling".
#pragma once

#include <cstdint>
#include <vector>

namespace infeng {

// The largest logit; `finite` becomes false if any is NaN or infinite.
float largest_of(const float* x, int64_t count, bool* finite);

// The first index at which `x` is `value`, which is there.
int64_t first_of(const float* x, int64_t count, float value);

struct Crossing {
  uint64_t key;      // of the token at which the sum of weights, in descending order, first exceeds a target
  uint64_t through;  // the sum up to and with that token
};

// Keys descend by logit, then ids ascend.
inline int32_t id_of(uint64_t key) { return int32_t(~uint32_t(key)); }

// All tokens of the vocabulary, or those that are left of them. One row at a time in a thread: the arrays are the
// thread's, and keep their memory from row to row.
class Candidates {
 public:
  Candidates(const float* logits, int64_t vocab, float largest, float temperature)
      : x_(logits), count_(vocab), largest_(largest), temperature_(temperature) {}

  // Keeps the top k of all tokens, or fewer if the others have weight 0.
  void keep_top(int64_t top_k);

  // Weighs those that are left; everything below needs it.
  void weigh();

  uint64_t total() const;

  // `total()` must exceed `target`.
  Crossing crossing(uint64_t target) const;

  // Drops what comes after `last` or is less likely than `min_p`, and weighs the rest.
  void keep_likely(float min_p, uint64_t last);

 private:
  uint64_t key(int32_t i) const;
  void take_keys();
  void sum();

  const float* x_;  // (count_,) the candidates' logits
  int64_t count_;
  float largest_;
  float temperature_;
  bool all_ = true;                // candidate i is token i
  const float* logits_ = nullptr;  // of the whole vocabulary, once `x_` is not
};

}  // namespace infeng
