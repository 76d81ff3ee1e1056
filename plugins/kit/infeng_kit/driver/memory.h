// Random numbers, memory with exact ends and views of it. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <infeng/abi.h>
#include <infeng/ops/tensor.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <utility>

inline std::mt19937_64 rng(1);
inline int64_t pick(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(rng); }
inline float normal() { return std::normal_distribution<float>()(rng); }
inline float uniform() { return float(int32_t(rng())) * 0x1p-31f; }
inline bool chance(double p) { return std::uniform_real_distribution<double>()(rng) < p; }
inline int64_t up(int64_t a, int64_t b) { return (a + b - 1) / b * b; }

// 64-byte aligned bytes with an exact end: an access beyond it fails in the sanitizer, or changes a canary.
class Bytes {
 public:
  explicit Bytes(int64_t size = 0, uint8_t fill = 0) : size_(size), data_(allocate(size)) {
    memset(data_.get(), fill, size_t(size));
    memset(data_.get() + size, 0xC9, kCanary);
  }
  Bytes(const Bytes& other) : Bytes(other.size_) { memcpy(data_.get(), other.data_.get(), size_t(size_)); }
  Bytes& operator=(const Bytes& other) {
    Bytes copy(other);
    std::swap(size_, copy.size_);
    data_.swap(copy.data_);
    return *this;
  }
  template <class T = uint8_t>
  T* as(int64_t offset = 0) const {
    return reinterpret_cast<T*>(data_.get() + offset);
  }
  int64_t size() const { return size_; }
  bool intact() const {
    for (int i = 0; i < kCanary; ++i)
      if (data_[size_ + i] != 0xC9) return false;
    return true;
  }
  bool operator==(const Bytes& other) const {
    return size_ == other.size_ && memcmp(data_.get(), other.data_.get(), size_t(size_)) == 0;
  }

 private:
#ifdef __SANITIZE_ADDRESS__
  static constexpr int kCanary = 0;
#else
  static constexpr int kCanary = 64;
#endif
  struct Free {
    void operator()(uint8_t* p) const { free(p); }
  };
  static uint8_t* allocate(int64_t size) {
    void* p = nullptr;
    if (posix_memalign(&p, 64, size_t(size + kCanary) + (size + kCanary == 0))) abort();
    return static_cast<uint8_t*>(p);
  }
  int64_t size_;
  std::unique_ptr<uint8_t[], Free> data_;
};

inline infeng_tensor matrix(const Bytes& data, int32_t dtype, int64_t rows, int64_t columns, int64_t stride) {
  return infeng_matrix(data.as<void>(), dtype, rows, columns, stride);
}
inline infeng_tensor vector_view(const Bytes& data, int64_t n) {
  infeng_tensor t = matrix(data, INFENG_F32, n, 0, 1);
  t.ndim = 1;
  return t;
}
// (rows, heads, dim) inside rows of `stride` floats, from `column` on.
inline infeng_tensor heads_view(const Bytes& data, int64_t rows, int64_t heads, int64_t dim, int64_t stride,
                                int64_t column = 0) {
  infeng_tensor t = matrix(data, INFENG_F32, rows, heads, stride);
  t.data = data.as<float>(column * 4);
  t.ndim = 3;
  t.shape[2] = dim;
  t.strides[1] = dim;
  t.strides[2] = 1;
  return t;
}

// Floats of very different sizes, with zeros of both signs.
inline Bytes floats(int64_t count, float size = 1.0f) {
  Bytes b(count * 4);
  for (int64_t i = 0; i < count; ++i) {
    float v = normal() * size;
    if (chance(0.02)) v *= 100.0f;
    if (chance(0.02)) v = chance(0.5) ? 0.0f : -0.0f;
    b.as<float>()[i] = v;
  }
  return b;
}
