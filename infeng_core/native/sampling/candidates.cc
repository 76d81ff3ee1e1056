// Tokens have integer weights, so sums over a vocabulary are exact in any order. They are computed by buckets, and only
// the few tokens in the bucket where a sum crosses its target are sorted.
#include "sampling/candidates.h"

#include <infeng/extension/clones.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>

namespace infeng {
namespace {

// e^x for x <= 0 (docs/numerics.md, "exp"). Adding and subtracting 1.5 * 2^23 rounds to the nearest integer, ties to
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

// Sorted descending, keys order tokens by descending logit, then by ascending id.
INFENG_INLINE uint64_t key_of(float logit, int32_t id) { return uint64_t(ordered(logit)) << 32 | uint32_t(~id); }

// Loops over a vocabulary run in blocks, whose inner loops have no dependencies and vectorize.
constexpr int64_t kBlock = 64;

// Buckets group candidates by their distance to the largest logit, in 64ths of the temperature. Tokens in the last
// bucket have weight 0: p < e^-31 < 2^-40.
constexpr int kBuckets = 1 << 11;
constexpr float kFineness = 64.0f;

INFENG_INLINE uint16_t bucket_of(float distance) {
  const float place = distance * -kFineness;
  return uint16_t(int32_t(place < float(kBuckets - 1) ? place : float(kBuckets - 1)));
}

INFENG_CLONED void buckets(const float* x, int64_t count, float largest, float temperature, uint16_t* bucket) {
  for (int64_t i = 0; i < count; i++) bucket[i] = bucket_of((x[i] - largest) / temperature);
}

INFENG_CLONED void spread(const float* x, int64_t count, float largest, float temperature, uint16_t* bucket, float* p) {
  float distance[kBlock];
  for (int64_t i = 0; i < count; i += kBlock) {
    const int64_t block = std::min(kBlock, count - i);
    for (int64_t j = 0; j < block; j++) distance[j] = (x[i + j] - largest) / temperature;
    for (int64_t j = 0; j < block; j++) p[i + j] = exponential(distance[j]);
    for (int64_t j = 0; j < block; j++) bucket[i + j] = bucket_of(distance[j]);
  }
}

// Calls found(i) for each i for which test(i) holds, ascending. Fast if few do.
template <class Test, class Found>
INFENG_INLINE void each(int64_t count, Test test, Found found) {
  int64_t i = 0;
  for (; i + kBlock <= count; i += kBlock) {
    uint32_t hit = 0;
    for (int64_t j = 0; j < kBlock; j++) hit |= uint32_t(test(i + j));
    for (int64_t j = 0; hit != 0 && j < kBlock; j++) {
      if (test(i + j)) found(i + j);
    }
  }
  for (; i < count; i++) {
    if (test(i)) found(i);
  }
}

// Each replaces `indices` by the indices that it finds.
INFENG_CLONED void at_bucket(const uint16_t* bucket, int64_t count, uint16_t at, std::vector<int32_t>* indices) {
  indices->clear();
  each(count, [&](int64_t i) { return bucket[i] == at; }, [&](int64_t i) { indices->push_back(int32_t(i)); });
}
INFENG_CLONED void up_to_bucket(const uint16_t* bucket, int64_t count, uint16_t most, std::vector<int32_t>* indices) {
  indices->clear();
  each(count, [&](int64_t i) { return bucket[i] <= most; }, [&](int64_t i) { indices->push_back(int32_t(i)); });
}
INFENG_CLONED void at_least(const float* p, int64_t count, float least, std::vector<int32_t>* indices) {
  indices->clear();
  each(count, [&](int64_t i) { return p[i] >= least; }, [&](int64_t i) { indices->push_back(int32_t(i)); });
}

// Buckets by the deviation of distances from their mean.
INFENG_CLONED void buckets_around(const float* x, int64_t count, float largest, float temperature, float mean,
                                  uint16_t* bucket) {
  for (int64_t i = 0; i < count; i++) bucket[i] = bucket_of(-std::fabs((x[i] - largest) / temperature + mean));
}

// The sum of term(x[i]) over all tokens that no mask excludes, in lanes as docs/numerics.md sums rows, but in double.
template <class Term>
INFENG_INLINE double in_lanes(const float* x, int64_t count, Term term) {
  constexpr int64_t kLanes = 16;
  constexpr float kOut = -std::numeric_limits<float>::infinity();
  double lane[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t j = 0; j < kLanes; j++) lane[j] += x[i + j] > kOut ? term(double(x[i + j])) : 0.0;
  }
  for (int64_t j = 0; i + j < count; j++) lane[j] += x[i + j] > kOut ? term(double(x[i + j])) : 0.0;
  for (int64_t half = kLanes / 2; half > 0; half /= 2) {
    for (int64_t j = 0; j < half; j++) lane[j] += lane[j + half];
  }
  return lane[0];
}

INFENG_CLONED double count_of(const float* x, int64_t count) {
  return in_lanes(x, count, [](double) { return 1.0; });
}
INFENG_CLONED double sum_of(const float* x, int64_t count) {
  return in_lanes(x, count, [](double value) { return value; });
}
INFENG_CLONED double squares_around(const float* x, int64_t count, double mean) {
  return in_lanes(x, count, [mean](double value) { return (value - mean) * (value - mean); });
}

constexpr float kLeast = 0x1p-40f;  // less likely tokens have weight 0

struct Candidate {
  uint64_t rank;
  uint64_t weight;
};

struct Memory {
  std::vector<uint16_t> bucket;
  std::vector<float> p;
  std::vector<float> x;
  std::vector<int32_t> ids;
  std::vector<int32_t> near;
  std::vector<int32_t> kept;
  std::vector<uint64_t> keys;
  std::vector<Candidate> sorted;
  uint64_t sums[kBuckets];
  uint64_t odd_sums[kBuckets];
};

Memory& memory() {
  thread_local Memory memory;
  return memory;
}

}  // namespace

INFENG_CLONED float largest_of(const float* x, int64_t count, bool* finite) {
  float most[kBlock];
  uint32_t bits[kBlock] = {};
  std::fill_n(most, kBlock, x[0]);
  const int64_t whole = count - count % kBlock;
  for (int64_t i = 0; i < whole; i += kBlock) {
    for (int64_t j = 0; j < kBlock; j++) most[j] = x[i + j] > most[j] ? x[i + j] : most[j];
    for (int64_t j = 0; j < kBlock; j++) {
      const uint32_t magnitude = std::bit_cast<uint32_t>(x[i + j]) & 0x7fffffffu;
      bits[j] = magnitude > bits[j] ? magnitude : bits[j];
    }
  }
  for (int64_t i = whole; i < count; i++) {
    most[0] = std::max(most[0], x[i]);
    bits[0] = std::max(bits[0], std::bit_cast<uint32_t>(x[i]) & 0x7fffffffu);
  }
  *finite = *std::max_element(bits, bits + kBlock) < 0x7f800000u;
  return *std::max_element(most, most + kBlock);
}

INFENG_CLONED int64_t first_of(const float* x, int64_t count, float value) {
  for (int64_t i = 0; i + kBlock <= count; i += kBlock) {
    uint32_t hit = 0;
    for (int64_t j = 0; j < kBlock; j++) hit |= uint32_t(x[i + j] == value);
    if (hit != 0) return std::find(x + i, x + i + kBlock, value) - x;
  }
  return std::find(x + (count - count % kBlock), x + count, value) - x;
}

uint64_t Candidates::key(int32_t i) const { return key_of(x_[i], all_ ? i : memory().ids[size_t(i)]); }

uint64_t Candidates::rank(int32_t i) const {
  if (!by_typicality_) return key(i);
  const float distance = (x_[i] - largest_) / temperature_;
  return key_of(-std::fabs(distance + mean_), all_ ? i : memory().ids[size_t(i)]);
}

// Keeps the candidates i of `near` for which test(i) holds.
template <class Test>
void Candidates::keep_near(Test test) {
  Memory& m = memory();
  m.kept.clear();
  for (const int32_t i : m.near) {
    if (test(i)) m.kept.push_back(id_of(key(i)));
  }
  take_kept();
}

// Makes the tokens of `kept` the candidates.
void Candidates::take_kept() {
  Memory& m = memory();
  std::swap(m.ids, m.kept);
  m.x.clear();
  for (const int32_t id : m.ids) m.x.push_back(row_[id]);
  all_ = false;
  is_weighed_ = is_cut_ = false;
  x_ = m.x.data();
  count_ = int64_t(m.x.size());
}

// Called after a filter that may remove the likeliest candidate.
void Candidates::find_largest() { largest_ = *std::max_element(x_, x_ + count_); }

// Sums the weights of each bucket. Neighbours are often in one bucket; two tables let their additions overlap.
void Candidates::sum() {
  Memory& m = memory();
  std::fill_n(m.sums, kBuckets, 0);
  std::fill_n(m.odd_sums, kBuckets, 0);
  const uint16_t* bucket = m.bucket.data();
  const float* p = m.p.data();
  int64_t i = 0;
  for (; i + 2 <= count_; i += 2) {
    m.sums[bucket[i]] += weight_of(p[i]);
    m.odd_sums[bucket[i + 1]] += weight_of(p[i + 1]);
  }
  if (i < count_) m.sums[bucket[i]] += weight_of(p[i]);
  for (int b = 0; b < kBuckets; b++) m.sums[b] += m.odd_sums[b];
}

void Candidates::weigh() {
  if (is_weighed_) return;
  Memory& m = memory();
  m.bucket.resize(size_t(count_));
  m.p.resize(size_t(count_));
  spread(x_, count_, largest_, temperature_, m.bucket.data(), m.p.data());
  sum();
  is_weighed_ = true;
}

// Removes the tokens that top_p cut off, before another filter looks at the candidates.
void Candidates::settle() {
  if (!is_cut_) return;
  Memory& m = memory();
  up_to_bucket(m.bucket.data(), count_, end_.bucket, &m.near);
  keep_near([&](int32_t i) { return key(i) >= end_.rank; });
}

uint64_t Candidates::total() {
  weigh();
  if (is_cut_) return end_.through;
  uint64_t total = 0;
  for (const uint64_t sum : memory().sums) total += sum;
  return total;
}

Candidates::Crossing Candidates::crossing(uint64_t target) const {
  Memory& m = memory();
  uint64_t before = 0;
  int bucket = 0;
  for (; before + m.sums[bucket] <= target; bucket++) before += m.sums[bucket];
  at_bucket(m.bucket.data(), count_, uint16_t(bucket), &m.near);
  m.sorted.clear();
  for (const int32_t i : m.near) m.sorted.push_back({rank(i), weight_of(m.p[size_t(i)])});
  std::sort(m.sorted.begin(), m.sorted.end(), [](const Candidate& a, const Candidate& b) { return a.rank > b.rank; });
  size_t i = 0;
  while ((before += m.sorted[i].weight) <= target) i++;
  return {m.sorted[i].rank, before, uint16_t(bucket)};
}

int32_t Candidates::pick(uint64_t target) { return id_of(crossing(target).rank); }

void Candidates::keep_top(int64_t top_k) {
  settle();
  if (top_k >= count_) return;
  Memory& m = memory();
  m.bucket.resize(size_t(count_));
  buckets(x_, count_, largest_, temperature_, m.bucket.data());
  uint32_t counts[kBuckets] = {};
  for (int64_t i = 0; i < count_; i++) counts[m.bucket[size_t(i)]]++;
  int last = 0;
  for (int64_t with = counts[0]; with < top_k && last < kBuckets - 2; with += counts[last]) last++;
  up_to_bucket(m.bucket.data(), count_, uint16_t(last), &m.near);
  m.keys.clear();
  for (const int32_t i : m.near) m.keys.push_back(key(i));
  if (int64_t(m.keys.size()) > top_k) {
    std::nth_element(m.keys.begin(), m.keys.begin() + top_k - 1, m.keys.end(), std::greater<>());
    m.keys.resize(size_t(top_k));
  }
  m.kept.clear();
  for (const uint64_t key : m.keys) m.kept.push_back(id_of(key));
  take_kept();
}

void Candidates::keep_probable(float top_p) {
  settle();
  const double enough = std::ceil(double(top_p) * double(total()));
  end_ = crossing(uint64_t(enough) - 1);
  is_cut_ = true;
}

void Candidates::keep_likely(float min_p) {
  weigh();
  Memory& m = memory();
  at_least(m.p.data(), count_, min_p, &m.near);
  keep_near([&](int32_t i) { return !is_cut_ || key(i) >= end_.rank; });
}

// The mean of (largest logit - logit) / temperature, by weight. The product of a weight and a distance stays far below
// 2^63, because p * -ln p is below 1/2. Products are summed in two halves, each exact in double.
float Candidates::mean_distance() const {
  constexpr int kHalf = 31;
  const Memory& m = memory();
  uint64_t low = 0, high = 0, total = 0;
  for (int64_t i = 0; i < count_; i++) {
    const uint64_t weight = weight_of(m.p[size_t(i)]);
    if (weight == 0) continue;
    const float distance = (largest_ - x_[i]) / temperature_;
    const uint64_t product = weight * uint64_t(int64_t(distance * 0x1p20f));
    low += product & ((uint64_t(1) << kHalf) - 1);
    high += product >> kHalf;
    total += weight;
  }
  return float((double(high) * 0x1p31 + double(low)) / (double(total) * 0x1p20));
}

void Candidates::keep_typical(float typical_p) {
  settle();
  const uint64_t target = uint64_t(double(typical_p) * double(total()));
  Memory& m = memory();
  mean_ = mean_distance();
  buckets_around(x_, count_, largest_, temperature_, mean_, m.bucket.data());
  sum();
  by_typicality_ = true;
  const Crossing end = crossing(target);
  up_to_bucket(m.bucket.data(), count_, end.bucket, &m.near);
  keep_near([&](int32_t i) { return m.p[size_t(i)] >= kLeast && rank(i) >= end.rank; });
  by_typicality_ = false;
  find_largest();
}

void Candidates::keep_within(float sigmas) {
  settle();
  const double tokens = count_of(row_, vocab_);
  const double mean = sum_of(row_, vocab_) / tokens;
  const double variance = tokens > 1 ? squares_around(row_, vocab_, mean) / (tokens - 1) : 0.0;
  const double least = double(largest_) - double(sigmas) * std::sqrt(variance);
  // Rounded up to float, which selects the same tokens.
  float rounded = float(std::max(least, double(std::numeric_limits<float>::lowest())));
  if (double(rounded) < least) rounded = std::nextafter(rounded, std::numeric_limits<float>::infinity());
  at_least(x_, count_, rounded, &memory().near);
  keep_near([](int32_t) { return true; });
}

void Candidates::drop_choices(float threshold) {
  settle();
  const double least = std::ceil(double(threshold) * double(total())) * 0x1p-40;  // exact, like the weights
  if (least > 1.0) return;
  Memory& m = memory();
  float rounded = float(least);
  if (double(rounded) < least) rounded = std::nextafter(rounded, 2.0f);
  at_least(m.p.data(), count_, rounded, &m.near);
  if (m.near.size() < 2) return;
  uint64_t last = ~uint64_t(0);
  for (const int32_t i : m.near) last = std::min(last, key(i));
  at_least(m.p.data(), count_, kLeast, &m.near);
  keep_near([&](int32_t i) { return key(i) <= last; });
  find_largest();
}

}  // namespace infeng
