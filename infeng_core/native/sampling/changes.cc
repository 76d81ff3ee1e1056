// Penalties, biases and masks on a copy of a row.
#include "sampling/changes.h"

#include <infeng/extension/clones.h>

#include <algorithm>
#include <limits>
#include <vector>

namespace infeng {
namespace {

// Bits of one word of a mask.
constexpr int64_t kBits = 32;

float saturated(float x) {
  constexpr float kMost = std::numeric_limits<float>::max();
  return std::clamp(x, -kMost, kMost);
}

INFENG_CLONED void leave_out(const uint32_t* mask, int64_t vocab, float* x) {
  constexpr float kOut = -std::numeric_limits<float>::infinity();
  int64_t i = 0;
  for (; i + kBits <= vocab; i += kBits) {
    const uint32_t word = mask[i / kBits];
    for (int64_t j = 0; j < kBits; j++) x[i + j] = (word >> j & 1u) != 0 ? x[i + j] : kOut;
  }
  for (; i < vocab; i++) {
    if ((mask[i / kBits] >> (i % kBits) & 1u) == 0) x[i] = kOut;
  }
}

}  // namespace

const float* changed_row(const float* logits, int64_t vocab, const RowChanges& changes) {
  thread_local std::vector<float> row;
  row.assign(logits, logits + vocab);
  float* x = row.data();
  for (int64_t c = 0; c < changes.change_count; c++) {
    float& at = x[changes.ids[c]];
    const float penalty = changes.penalties[c];
    at = saturated(at > 0.0f ? at / penalty : at * penalty);
    at = saturated(at + changes.biases[c]);
  }
  for (int64_t m = 0; m < changes.mask_count; m++) leave_out(changes.masks + m * mask_words(vocab), vocab, x);
  return x;
}

}  // namespace infeng
