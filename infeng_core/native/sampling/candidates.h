// The tokens of one row of logits that sampling chooses from, with their integer weights: docs/numerics.md, "Sampling".
#pragma once

#include <cstdint>
#include <vector>

namespace infeng {

// The largest logit; `finite` becomes false if any is NaN or infinite.
float largest_of(const float* x, int64_t count, bool* finite);

// The first index at which `x` is `value`, which is there.
int64_t first_of(const float* x, int64_t count, float value);

// Keys descend by logit, then ids ascend.
inline int32_t id_of(uint64_t key) { return int32_t(~uint32_t(key)); }

// All tokens of the vocabulary, or those that are left of them. One row at a time in a thread: the arrays are the
// thread's, and keep their memory from row to row.
class Candidates {
 public:
  // `largest` of the row's logits; tokens of -infinity are none of the candidates.
  Candidates(const float* logits, int64_t vocab, float largest, float temperature)
      : row_(logits), vocab_(vocab), x_(logits), count_(vocab), largest_(largest), temperature_(temperature) {}

  void keep_top(int64_t top_k);        // the top k, or fewer if the others have weight 0
  void keep_probable(float top_p);     // in (0, 1)
  void keep_likely(float min_p);       // above 0
  void keep_typical(float typical_p);  // in (0, 1)
  void keep_within(float sigmas);      // above 0: top-n-sigma
  void drop_choices(float threshold);  // above 0: XTC, once it acts

  // The sum of the weights of those that are left.
  uint64_t total();

  // The first of them at which the sum of weights exceeds `target`, which is below `total()`.
  int32_t pick(uint64_t target);

 private:
  struct Crossing {
    uint64_t rank;     // of the token at which the sum of weights, in descending order, first exceeds a target
    uint64_t through;  // the sum up to and with that token
    uint16_t bucket;   // of that token
  };

  uint64_t key(int32_t i) const;
  uint64_t rank(int32_t i) const;
  Crossing crossing(uint64_t target) const;
  float mean_distance() const;
  void weigh();
  void sum();
  void settle();
  void take_keys();
  void take_others();

  const float* row_;  // (vocab_,) the logits of all tokens
  int64_t vocab_;
  const float* x_;  // (count_,) the candidates' logits
  int64_t count_;
  float largest_;  // of the candidates' logits
  float temperature_;
  bool all_ = true;  // candidate i is token i
  bool is_weighed_ = false;
  bool by_typicality_ = false;  // ranks are those of `keep_typical`, else keys
  float mean_ = 0;              // of the distances, for those ranks
  bool is_cut_ = false;         // what comes after `end_` is none of the candidates any more
  Crossing end_{};
};

}  // namespace infeng
