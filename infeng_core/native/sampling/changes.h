// A request's changes of a row of logits before a token is drawn (docs/numerics.md, "Sampling").
#pragma once

#include <cstdint>

namespace infeng {

struct RowChanges {
  const uint32_t* masks = nullptr;  // (mask_count, mask_words(vocab)): a token is allowed if all masks set its bit
  int64_t mask_count = 0;
  const int32_t* ids = nullptr;      // (change_count,) tokens whose logits change, in this order
  const float* penalties = nullptr;  // (change_count,) divides a logit above 0, multiplies another
  const float* biases = nullptr;     // (change_count,) added afterwards
  int64_t change_count = 0;

  bool any() const { return mask_count + change_count != 0; }
};

inline int64_t mask_words(int64_t vocab) { return (vocab + 31) / 32; }

// Returns the changed row, in which tokens that a mask excludes are -infinity. It stays valid until the thread's next
// call. The logits and all changes must be finite, ids below `vocab`. Allocates only when the thread meets a larger
// vocabulary than before.
const float* changed_row(const float* logits, int64_t vocab, const RowChanges& changes);

}  // namespace infeng
