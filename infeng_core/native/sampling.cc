// Weights of tokens are integers, so sums over a vocabulary are exact in any order: nothing is sorted but the few
// tokens around the one that is picked.
#include "sampling.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <vector>

#include "clones.h"
#include "philox.h"

namespace infeng {
namespace {

// e^x for x <= 0, docs/numerics.md "exp". Adding and taking away 1.5 * 2^23 rounds to the nearest integer, ties to
// even.
INFENG_INLINE float exponential(float x) {
  x = x > -87.33f ? x : -87.33f;
  const float n = (x * 0x1.715476p+0f + 0x1.8p23f) - 0x1.8p23f;
  float r = std::fma(n, -0x1.62e430p-1f, x);
  r = std::fma(n, 0x1.05c610p-29f, r);
  float p = 1.9875691500e-4f;
  p = std::fma(p, r, 1.3981999507e-3f);
  p = std::fma(p, r, 8.3334519073e-3f);
  p = std::fma(p, r, 4.1665795894e-2f);
  p = std::fma(p, r, 1.6666665459e-1f);
  p = std::fma(p, r, 5.0000001201e-1f);
  const float y = std::fma(p, r * r, r) + 1.0f;
  return y * std::bit_cast<float>(uint32_t(int32_t(n) + 127) << 23);
}

// floor(p * 2^40)
INFENG_INLINE uint64_t weight_of(float p) { return uint64_t(int64_t(p * 0x1p40f)); }

// Order-preserving bits of a finite float; -0 counts as +0.
INFENG_INLINE uint32_t ordered(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x + 0.0f);
  return bits ^ (uint32_t(int32_t(bits) >> 31) | 0x80000000u);
}
INFENG_INLINE float unordered(uint32_t key) {
  return std::bit_cast<float>(key & 0x80000000u ? key ^ 0x80000000u : ~key);
}

// Keys descend by logit, then ids ascend.
INFENG_INLINE uint64_t key_of(float logit, int64_t id) {
  return uint64_t(ordered(logit)) << 32 | uint32_t(~uint32_t(id));
}
INFENG_INLINE int32_t id_of(uint64_t key) { return int32_t(~uint32_t(key)); }
INFENG_INLINE float logit_of(uint64_t key) { return unordered(uint32_t(key >> 32)); }

// Buckets of keys by their upper 12 bits: sign, exponent and 3 bits of the mantissa of the logit.
constexpr int kBuckets = 1 << 12;
INFENG_INLINE uint32_t bucket_of(uint64_t key) { return uint32_t(key >> 52); }

// The largest logit's ordered bits; `finite` becomes false if any logit is NaN or infinite.
INFENG_CLONED uint32_t largest_ordered(const float* logits, int64_t count, bool* finite) {
  uint32_t largest = 0, bad = 0;
  for (int64_t i = 0; i < count; i++) {
    const uint32_t bits = std::bit_cast<uint32_t>(logits[i]);
    bad |= uint32_t((bits & 0x7f800000u) == 0x7f800000u);
    const uint32_t key = ordered(logits[i]);
    largest = key > largest ? key : largest;
  }
  *finite = bad == 0;
  return largest;
}

INFENG_CLONED void all_keys(const float* logits, int64_t count, uint64_t* keys) {
  for (int64_t i = 0; i < count; i++) keys[i] = key_of(logits[i], i);
}

INFENG_CLONED void probabilities(const uint64_t* keys, int64_t count, float largest, float temperature, float* p) {
  for (int64_t i = 0; i < count; i++) p[i] = logit_of(keys[i]);  // a loop of its own: compilers vectorise it
  for (int64_t i = 0; i < count; i++) p[i] = exponential((p[i] - largest) / temperature);
}

struct Candidate {
  uint64_t key;
  uint64_t weight;
};

// The candidates of one row. The vectors keep their memory from call to call.
class Candidates {
 public:
  // Takes all tokens, or the top k.
  void take(const float* logits, int64_t vocab, int64_t top_k) {
    keys_.resize(size_t(vocab));
    all_keys(logits, vocab, keys_.data());
    if (top_k == 0 || top_k >= vocab) return;
    uint64_t counts[kBuckets] = {};
    for (const uint64_t key : keys_) counts[bucket_of(key)]++;
    uint32_t bucket = kBuckets - 1;
    for (int64_t above = 0; (above += int64_t(counts[bucket])) < top_k;) bucket--;
    std::erase_if(keys_, [&](uint64_t key) { return bucket_of(key) < bucket; });
    std::nth_element(keys_.begin(), keys_.begin() + top_k - 1, keys_.end(), std::greater<>());
    keys_.resize(size_t(top_k));
  }

  void weigh(float largest, float temperature) {
    p_.resize(keys_.size());
    probabilities(keys_.data(), int64_t(keys_.size()), largest, temperature, p_.data());
  }

  // The sum of all weights from `last` upwards.
  uint64_t total(uint64_t last) const {
    uint64_t sum = 0;
    for (size_t i = 0; i < keys_.size(); i++) sum += keys_[i] >= last ? weight_of(p_[i]) : 0;
    return sum;
  }

  void drop_below(float min_p) {
    for (float& p : p_) p = p < min_p ? 0.0f : p;
  }

  // The first key in descending order at which the running sum of weights exceeds `target`, which the whole sum does.
  uint64_t crossing(uint64_t target) {
    uint64_t sums[kBuckets] = {};
    for (size_t i = 0; i < keys_.size(); i++) sums[bucket_of(keys_[i])] += weight_of(p_[i]);
    uint64_t before = 0;
    uint32_t bucket = kBuckets - 1;
    for (; before + sums[bucket] <= target; bucket--) before += sums[bucket];
    near_.clear();
    for (size_t i = 0; i < keys_.size(); i++) {
      if (bucket_of(keys_[i]) == bucket) near_.push_back({keys_[i], weight_of(p_[i])});
    }
    std::sort(near_.begin(), near_.end(), [](const Candidate& a, const Candidate& b) { return a.key > b.key; });
    size_t i = 0;
    while ((before += near_[i].weight) <= target) i++;
    return near_[i].key;
  }

 private:
  std::vector<uint64_t> keys_;
  std::vector<float> p_;
  std::vector<Candidate> near_;
};

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

int32_t sample_row(const float* logits, int64_t vocab, const SamplingSettings& s) {
  bool finite;
  const float largest = unordered(largest_ordered(logits, vocab, &finite));
  if (!finite) return -1;
  if (s.temperature == 0.0f || s.top_k == 1) return int32_t(std::find(logits, logits + vocab, largest) - logits);

  thread_local Candidates candidates;
  candidates.take(logits, vocab, s.top_k);
  candidates.weigh(largest, s.temperature);
  uint64_t last = 0;
  if (s.top_p < 1.0f) {
    const double enough = std::ceil(double(s.top_p) * double(candidates.total(0)));
    last = candidates.crossing(uint64_t(enough) - 1);
  }
  if (s.min_p > 0.0f) candidates.drop_below(s.min_p);
  return id_of(candidates.crossing(scaled(uniform64(s.seed, uint64_t(s.position)), candidates.total(last))));
}

}  // namespace infeng
