// Picking one token of one row.
#include "sampling/sampling.h"

#include <cmath>

#include "library/candidates.h"
#include "sampling/philox.h"

namespace infeng {
namespace {

// floor(random * total / 2^64) by 32-bit halves.
uint64_t scaled(uint64_t random, uint64_t total) {
  const uint64_t random_low = random & 0xffffffffu, random_high = random >> 32;
  const uint64_t total_low = total & 0xffffffffu, total_high = total >> 32;
  const uint64_t low = random_low * total_low;
  const uint64_t middle = random_high * total_low + (low >> 32);
  const uint64_t cross = random_low * total_high + (middle & 0xffffffffu);
  return random_high * total_high + (middle >> 32) + (cross >> 32);
}

uint64_t uniform64(uint64_t seed, uint64_t position) {
  const auto words =
      philox4x32_10({uint32_t(seed), uint32_t(seed >> 32)}, {uint32_t(position), uint32_t(position >> 32), 0, 0});
  return words[0] | uint64_t(words[1]) << 32;
}

}  // namespace

int32_t sample_row(const float* logits, int64_t vocab, const SamplingSettings& s, const RowChanges& changes) {
  bool finite;
  float largest = largest_of(logits, vocab, &finite);
  if (!finite) return kNotFinite;
  if (changes.any()) {
    logits = changed_row(logits, vocab, changes);
    largest = largest_of(logits, vocab, &finite);  // not for tokens that are left out, whose weight becomes 0
    if (std::isinf(largest)) return kNothingAllowed;
  }
  if (s.temperature == 0.0f || s.top_k == 1) return int32_t(first_of(logits, vocab, largest));

  Candidates candidates(logits, vocab, largest, s.temperature);
  if (s.top_k > 0 && s.top_k < vocab) candidates.keep_top(s.top_k);
  candidates.weigh();
  uint64_t last = 0, total = candidates.total();
  if (s.top_p < 1.0f) {
    const double enough = std::ceil(double(s.top_p) * double(total));
    const Crossing end = candidates.crossing(uint64_t(enough) - 1);
    last = end.key;
    total = end.through;
  }
  if (s.min_p > 0.0f) {
    candidates.keep_likely(s.min_p, last);
    total = candidates.total();
  }
  return id_of(candidates.crossing(scaled(uniform64(s.seed, uint64_t(s.position)), total)).key);
}

}  // namespace infeng
