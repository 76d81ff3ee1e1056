// Picking one token of a row of logits, as docs/numerics.md, "Sampling", defines it.
#pragma once

#include <cstdint>

namespace infeng {

inline constexpr int64_t kMostTokens = int64_t(1) << 22;  // of a vocabulary, so that sums of weights fit in 63 bits

struct SamplingSettings {
  float temperature;  // 0: greedy
  int64_t top_k;      // 0: off
  float top_p;        // 1: off
  float min_p;        // 0: off
  uint64_t seed;
  int64_t position;  // of the token that is picked
};

// The id that a row of `vocab` logits gives, or -1 if any of them is NaN or infinite. Allocates only until this thread
// has seen its largest vocabulary.
int32_t sample_row(const float* logits, int64_t vocab, const SamplingSettings& settings);

}  // namespace infeng
