// What a request wants of a row of logits before a token is drawn from it: docs/numerics.md, "Sampling".
#pragma once

#include <cstdint>

namespace infeng {

struct RowChanges {
  const uint32_t* masks = nullptr;  // (mask_count, mask_words(vocab)): token i needs bit i % 32 of word i / 32 in each
  int64_t mask_count = 0;
  const int32_t* ids = nullptr;      // (change_count,) tokens whose logits change, in this order, ...
  const float* penalties = nullptr;  // ... divided by this if above 0, else multiplied with it ...
  const float* biases = nullptr;     // ... and this added
  int64_t change_count = 0;

  bool any() const { return mask_count + change_count != 0; }
};

inline int64_t mask_words(int64_t vocab) { return (vocab + 31) / 32; }

// The changed row, which is this thread's until its next one; a token that a mask leaves out has -infinity. The logits
// and all changes must be finite, ids below `vocab`. Allocates only until this thread has seen its largest vocabulary.
const float* changed_row(const float* logits, int64_t vocab, const RowChanges& changes);

}  // namespace infeng
