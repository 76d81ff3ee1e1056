// The tokens of a row of logits among which sampling chooses, with integer weights (docs/numerics.md, "Sampling").
#pragma once

#include <cstdint>
#include <vector>

namespace infeng {

// The largest logit; `finite` becomes false if any is NaN or infinite.
float largest_of(const float* x, int64_t count, bool* finite);

// The first index at which `x` equals `value`; there must be one.
int64_t first_of(const float* x, int64_t count, float value);

// The token of a key, which holds the logit above and the inverted id below.
inline int32_t id_of(uint64_t key) { return int32_t(~uint32_t(key)); }

// The candidates: all tokens of the vocabulary, then the tokens that filters keep. A thread works on one row at a time:
// the arrays are thread-local and keep their memory from row to row.
class Candidates {
 public:
  // `largest`: the row's largest logit. Tokens with a logit of -infinity are no candidates.
  Candidates(const float* logits, int64_t vocab, float largest, float temperature)
      : row_(logits), vocab_(vocab), x_(logits), count_(vocab), largest_(largest), temperature_(temperature) {}

  void keep_top(int64_t top_k);        // the top k; fewer if others have weight 0
  void keep_probable(float top_p);     // in (0, 1)
  void keep_likely(float min_p);       // above 0
  void keep_typical(float typical_p);  // in (0, 1)
  void keep_within(float sigmas);      // above 0: top-n-sigma
  void drop_choices(float threshold);  // above 0: XTC

  // The sum of the candidates' weights.
  uint64_t total();

  // The first candidate, by descending key, at which the sum of weights exceeds `target` < total().
  int32_t pick(uint64_t target);

 private:
  struct Crossing {
    uint64_t rank;     // of the token at which the sum of weights, by descending rank, first exceeds a target
    uint64_t through;  // the sum including that token
    uint16_t bucket;   // of that token
  };

  uint64_t key(int32_t i) const;
  uint64_t rank(int32_t i) const;
  Crossing crossing(uint64_t target) const;
  float mean_distance() const;
  void weigh();
  void sum();
  void settle();
  template <class Test>
  void keep_near(Test test);
  void take_kept();
  void find_largest();

  const float* row_;  // (vocab_,) the logits of all tokens
  int64_t vocab_;
  const float* x_;  // (count_,) the candidates' logits
  int64_t count_;
  float largest_;  // of the candidates' logits
  float temperature_;
  bool all_ = true;  // candidate i is token i
  bool is_weighed_ = false;
  bool by_typicality_ = false;  // ranks order by deviation from `mean_`; else they are keys
  float mean_ = 0;              // the mean of the distances
  bool is_cut_ = false;         // tokens after `end_` are no longer candidates
  Crossing end_{};
};

}  // namespace infeng
