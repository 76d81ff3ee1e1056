// Picking one token of one row.
#include "sampling/sampling.h"

#include <cmath>

#include "sampling/candidates.h"
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

// The streams of random numbers of one position: the third word of the counter.
constexpr uint32_t kPick = 0, kXtc = 1;

uint64_t uniform64(uint64_t seed, uint64_t position, uint32_t stream) {
  const auto words =
      philox4x32_10({uint32_t(seed), uint32_t(seed >> 32)}, {uint32_t(position), uint32_t(position >> 32), stream, 0});
  return words[0] | uint64_t(words[1]) << 32;
}

bool xtc_acts(const SamplingSettings& s) {
  if (!(s.xtc_probability > 0.0f)) return false;
  const double random = double(uniform64(s.seed, uint64_t(s.position), kXtc) >> 11) * 0x1p-53;
  return random < double(s.xtc_probability);
}

void narrow(Candidates& candidates, Filter filter, const SamplingSettings& s) {
  switch (filter) {
    case Filter::top_n_sigma:
      if (s.top_n_sigma > 0.0f) candidates.keep_within(s.top_n_sigma);
      break;
    case Filter::top_k:
      if (s.top_k > 0) candidates.keep_top(s.top_k);
      break;
    case Filter::top_p:
      if (s.top_p < 1.0f) candidates.keep_probable(s.top_p);
      break;
    case Filter::min_p:
      if (s.min_p > 0.0f) candidates.keep_likely(s.min_p);
      break;
    case Filter::typical_p:
      if (s.typical_p < 1.0f) candidates.keep_typical(s.typical_p);
      break;
    case Filter::xtc:
      if (xtc_acts(s)) candidates.drop_choices(s.xtc_threshold);
      break;
  }
}

}  // namespace

int32_t sample_row(const float* logits, int64_t vocab, const SamplingSettings& s, const RowChanges& changes,
                   const FilterOrder& order) {
  bool finite;
  float largest = largest_of(logits, vocab, &finite);
  if (!finite) return kNotFinite;
  if (changes.any()) {
    logits = changed_row(logits, vocab, changes);
    largest = largest_of(logits, vocab, &finite);  // excluded tokens are -infinity, so `finite` means nothing here
    if (std::isinf(largest)) return kNothingAllowed;
  }
  const bool keeps_likeliest = !(s.typical_p < 1.0f || s.xtc_probability > 0.0f);
  const bool is_greedy = s.temperature == 0.0f || (s.top_k == 1 && keeps_likeliest);
  if (is_greedy) return int32_t(first_of(logits, vocab, largest));

  Candidates candidates(logits, vocab, largest, s.temperature);
  for (const Filter filter : order) narrow(candidates, filter, s);
  const uint64_t total = candidates.total();
  return candidates.pick(scaled(uniform64(s.seed, uint64_t(s.position), kPick), total));
}

}  // namespace infeng
