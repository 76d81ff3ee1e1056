// Picking one token id per row of logits, as docs/numerics.md, "Sampling", defines it. Weights of tokens are integers,
// so sums over a vocabulary are exact in any order and only as much of it is sorted as the pick needs.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <vector>

#include "bindings.h"
#include "clones.h"
#include "error.h"
#include "philox.h"

namespace py = pybind11;

namespace infeng {
namespace {

struct Settings {
  float temperature;
  int64_t top_k;
  float top_p;
  float min_p;
  uint64_t seed;
  int64_t position;
};

// e^x for x <= 0, docs/numerics.md "exp".
INFENG_INLINE float exponential(float x) {
  const bool vanishes = x < -87.33f;
  x = vanishes ? 0.0f : x;
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
  const float result = y * std::bit_cast<float>(uint32_t(int32_t(n) + 127) << 23);
  return vanishes ? 0.0f : result;
}

INFENG_INLINE float probability(float logit, float largest, float temperature) {
  return exponential((logit - largest) / temperature);
}

// A probability as a multiple of 2^-40; sums over 2^22 tokens stay below 2^63.
INFENG_INLINE uint64_t weight_of(float p) { return uint64_t(int64_t(p * 0x1p40f)); }

// Order-preserving bits of a finite float; -0 counts as +0.
INFENG_INLINE uint32_t ordered(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x + 0.0f);
  return bits ^ (uint32_t(int32_t(bits) >> 31) | 0x80000000u);
}
INFENG_INLINE float unordered(uint32_t key) {
  return std::bit_cast<float>(key & 0x80000000u ? key ^ 0x80000000u : ~key);
}

// Larger keys come first: by logit descending, then by id ascending.
INFENG_INLINE uint64_t key_of(float logit, int64_t id) {
  return uint64_t(ordered(logit)) << 32 | uint32_t(~uint32_t(id));
}
INFENG_INLINE int32_t id_of(uint64_t key) { return int32_t(~uint32_t(key)); }
INFENG_INLINE float logit_of(uint64_t key) { return unordered(uint32_t(key >> 32)); }

// The largest logit's ordered bits; `finite` becomes false if any logit is NaN or infinite.
INFENG_CLONED uint32_t largest_ordered(const float* logits, int64_t count, bool* finite) {
  uint32_t largest = 0, bad = 0;
  for (int64_t i = 0; i < count; i++) {
    const uint32_t bits = std::bit_cast<uint32_t>(logits[i]);
    bad |= (bits & 0x7f800000u) == 0x7f800000u;
    const uint32_t key = ordered(logits[i]);
    largest = key > largest ? key : largest;
  }
  *finite = bad == 0;
  return largest;
}

INFENG_CLONED void probabilities(const float* logits, int64_t count, float largest, float temperature, float* out) {
  for (int64_t i = 0; i < count; i++) out[i] = probability(logits[i], largest, temperature);
}

// Candidates in descending order, sorted only as far as they are read.
class Descending {
 public:
  explicit Descending(std::vector<uint64_t>& keys) : keys_(keys) {}
  int64_t size() const { return int64_t(keys_.size()); }
  uint64_t operator[](int64_t i) {
    while (i >= sorted_) {
      const int64_t end = std::min<int64_t>(size(), sorted_ == 0 ? 64 : 4 * sorted_);
      const auto from = keys_.begin() + sorted_;
      const auto to = keys_.begin() + end;
      if (end < size()) std::nth_element(from, to, keys_.end(), std::greater<>());
      std::sort(from, to, std::greater<>());
      sorted_ = end;
    }
    return keys_[i];
  }

 private:
  std::vector<uint64_t>& keys_;
  int64_t sorted_ = 0;
};

// floor(random * total / 2^64), by 32-bit halves; total < 2^63.
uint64_t scaled(uint64_t random, uint64_t total) {
  const uint64_t low = (random & 0xffffffffu) * (total & 0xffffffffu);
  const uint64_t middle = (random >> 32) * (total & 0xffffffffu) + (low >> 32);
  const uint64_t cross = (random & 0xffffffffu) * (total >> 32) + (middle & 0xffffffffu);
  return (random >> 32) * (total >> 32) + (middle >> 32) + (cross >> 32);
}

// Scratch that grows to one vocabulary and is then reused by every call of the thread.
struct Scratch {
  std::vector<uint64_t> keys;
  std::vector<float> probabilities;
};

int32_t pick(const float* logits, int64_t vocab, float largest, const Settings& s, Scratch& scratch) {
  std::vector<uint64_t>& keys = scratch.keys;
  keys.clear();
  uint64_t total = 0;  // weight of the top k
  if (s.top_k > 0 && s.top_k < vocab) {
    for (int64_t i = 0; i < vocab; i++) keys.push_back(key_of(logits[i], i));
    std::nth_element(keys.begin(), keys.begin() + s.top_k, keys.end(), std::greater<>());
    keys.resize(s.top_k);
    for (const uint64_t key : keys) total += weight_of(probability(logit_of(key), largest, s.temperature));
  } else {
    scratch.probabilities.resize(vocab);
    probabilities(logits, vocab, largest, s.temperature, scratch.probabilities.data());
    for (int64_t i = 0; i < vocab; i++) {
      const uint64_t weight = weight_of(scratch.probabilities[i]);
      total += weight;
      if (weight != 0) keys.push_back(key_of(logits[i], i));
    }
  }

  // The prefix that top-p and min-p leave; `kept` is its weight.
  Descending order(keys);
  int64_t length = order.size();
  uint64_t kept = total;
  if (s.top_p < 1.0f || s.min_p > 0.0f) {
    const double enough = s.top_p < 1.0f ? double(s.top_p) * double(total) : HUGE_VAL;
    kept = 0;
    for (int64_t i = 0; i < length; i++) {
      const float p = probability(logit_of(order[i]), largest, s.temperature);
      if (p < s.min_p) {
        length = i;
        break;
      }
      kept += weight_of(p);
      if (double(kept) >= enough) length = i + 1;
    }
  }

  const std::array<uint32_t, 4> random = philox4x32_10(
      {uint32_t(s.seed), uint32_t(s.seed >> 32)}, {uint32_t(s.position), uint32_t(uint64_t(s.position) >> 32), 0, 0});
  const uint64_t target = scaled(random[0] | uint64_t(random[1]) << 32, kept);
  uint64_t sum = 0;
  for (int64_t i = 0; i < length; i++) {
    sum += weight_of(probability(logit_of(order[i]), largest, s.temperature));
    if (sum > target) return id_of(order[i]);
  }
  return id_of(order[0]);  // not reached: sum ends at kept > target
}

int32_t sample_row(const float* logits, int64_t vocab, int64_t row, const Settings& s, Scratch& scratch) {
  bool finite;
  const uint32_t key = largest_ordered(logits, vocab, &finite);
  if (!finite) fail("not_finite", "row ", row, ": the logits hold NaN or infinity");
  const float largest = unordered(key);
  if (s.temperature > 0.0f && s.top_k != 1) return pick(logits, vocab, largest, s, scratch);
  return int32_t(std::find(logits, logits + vocab, largest) - logits);
}

template <class T>
using Vector = py::array_t<T, py::array::c_style>;

void check(const Settings& s, int64_t row) {
  if (!(s.temperature >= 0.0f && s.temperature <= 3.4e38f)) {
    fail("invalid_argument", "row ", row, ": temperature must be finite and not negative, not ", s.temperature);
  }
  if (s.top_k < 0) fail("invalid_argument", "row ", row, ": top_k must not be negative, not ", s.top_k);
  if (!(s.top_p > 0.0f && s.top_p <= 1.0f))
    fail("invalid_argument", "row ", row, ": top_p must lie in (0, 1], not ", s.top_p);
  if (!(s.min_p >= 0.0f && s.min_p <= 1.0f))
    fail("invalid_argument", "row ", row, ": min_p must lie in [0, 1], not ", s.min_p);
}

void sample(const py::array_t<float>& logits, const Vector<float>& temperature, const Vector<int32_t>& top_k,
            const Vector<float>& top_p, const Vector<float>& min_p, const Vector<uint64_t>& seed,
            const Vector<int64_t>& position, py::array_t<int32_t> out) {
  if (logits.ndim() != 2 || logits.shape(1) < 1 || logits.shape(1) > 1 << 22 || logits.strides(1) != sizeof(float)) {
    fail("invalid_argument", "logits must be (samples, vocab) with contiguous rows and 1 to 2^22 tokens");
  }
  const int64_t rows = logits.shape(0);
  for (const py::array* vector : {static_cast<const py::array*>(&temperature), static_cast<const py::array*>(&top_k),
                                  static_cast<const py::array*>(&top_p), static_cast<const py::array*>(&min_p),
                                  static_cast<const py::array*>(&seed), static_cast<const py::array*>(&position),
                                  static_cast<const py::array*>(&out)}) {
    if (vector->ndim() != 1 || vector->shape(0) != rows)
      fail("invalid_argument", "every argument must have one entry per row");
  }
  const auto row_bytes = logits.strides(0);
  const char* base = reinterpret_cast<const char*>(logits.data());
  auto ids = out.mutable_unchecked<1>();
  const py::gil_scoped_release released;
  thread_local Scratch scratch;
  for (int64_t row = 0; row < rows; row++) {
    const Settings s{temperature.data()[row], top_k.data()[row], top_p.data()[row],
                     min_p.data()[row],       seed.data()[row],  position.data()[row]};
    check(s, row);
    ids(row) = sample_row(reinterpret_cast<const float*>(base + row * row_bytes), logits.shape(1), row, s, scratch);
  }
}

}  // namespace

void bind_sampling(py::module_& m) {
  m.def("sample", &sample, py::arg("logits").noconvert(), py::arg("temperature"), py::arg("top_k"), py::arg("top_p"),
        py::arg("min_p"), py::arg("seed"), py::arg("position"), py::arg("out").noconvert(),
        "Pick one id per row as docs/numerics.md says; raises NativeError \"not_finite\" naming the row.");
  m.def("philox", &philox4x32_10, py::arg("key"), py::arg("counter"),
        "Philox4x32-10 of a key of two and a counter of four 32-bit words.");
}

}  // namespace infeng
