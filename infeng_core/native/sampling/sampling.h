// Picking one token of a row of logits, as docs/numerics.md, "Sampling", defines it.
#pragma once

#include <array>
#include <cstdint>

#include "sampling/changes.h"

namespace infeng {

inline constexpr int64_t kMostTokens = int64_t(1) << 22;  // of a vocabulary, so that sums of weights fit in 63 bits

// The filters that narrow the choice after the temperature, in their default order; a manifest may name another.
enum class Filter : uint8_t { top_n_sigma, top_k, top_p, min_p, typical_p, xtc };
inline constexpr int kFilters = 6;
inline constexpr std::array<const char*, kFilters> kFilterNames = {"top_n_sigma", "top_k",     "top_p",
                                                                   "min_p",       "typical_p", "xtc"};
using FilterOrder = std::array<Filter, kFilters>;
inline constexpr FilterOrder kFilterOrder = {Filter::top_n_sigma, Filter::top_k,     Filter::top_p,
                                             Filter::min_p,       Filter::typical_p, Filter::xtc};

struct SamplingSettings {
  float temperature;  // 0: greedy
  int64_t top_k;      // 0: off
  float top_p;        // 1: off
  float min_p;        // 0: off
  uint64_t seed;
  int64_t position;              // of the token that is picked
  float typical_p = 1.0f;        // 1: off
  float top_n_sigma = 0.0f;      // 0: off
  float xtc_probability = 0.0f;  // 0: off
  float xtc_threshold = 1.0f;
};

// Results in place of an id.
inline constexpr int32_t kNotFinite = -1;       // the logits hold NaN or infinity
inline constexpr int32_t kNothingAllowed = -2;  // the masks exclude every token

// Applies `changes` to a row of `vocab` logits and picks a token; returns its id or one of the results above. Allocates
// only when the thread meets a larger vocabulary than before.
int32_t sample_row(const float* logits, int64_t vocab, const SamplingSettings& settings, const RowChanges& changes,
                   const FilterOrder& order = kFilterOrder);

}  // namespace infeng
