// What the conformance driver is made of: memory with exact ends, random inputs, a runner that plays the core.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dlfcn.h>
#include <infeng/abi.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

inline std::mt19937_64 rng(1);
inline int64_t pick(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(rng); }
inline float normal() { return std::normal_distribution<float>()(rng); }
inline bool chance(double p) { return std::uniform_real_distribution<double>()(rng) < p; }
inline int64_t up(int64_t a, int64_t b) { return (a + b - 1) / b * b; }

// 64-byte aligned bytes that end where they end: one more is an error of the sanitizer, or of the canary without one.
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
  infeng_tensor t{};
  t.data = data.as<void>();
  t.dtype = dtype;
  t.device_type = INFENG_DEVICE_CPU;
  t.ndim = 2;
  t.shape[0] = rows;
  t.shape[1] = columns;
  t.strides[0] = stride;
  t.strides[1] = 1;
  return t;
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
  t.byte_offset = column * 4;
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

// int8 rows with scales and sums; extreme groups test the limits of narrower arithmetic.
struct Activation {
  int64_t rows, k, groups;
  Bytes q, scale, sum;
  explicit Activation(int64_t rows_ = 0, int64_t k_ = 0)
      : rows(rows_),
        k(k_),
        groups(up(k_, 64) / 64),
        q(rows * groups * 64, 0x55),
        scale(rows * groups * 4, 0x55),
        sum(rows * groups * 4, 0x55) {}
  void randomize() {
    for (int64_t m = 0; m < rows; ++m)
      for (int64_t g = 0; g < groups; ++g) {
        const int64_t style = pick(0, 9);
        int32_t total = 0;
        for (int64_t i = 0; i < 64; ++i) {
          int64_t v = style == 0   ? 0
                      : style == 1 ? 127
                      : style == 2 ? -127
                      : style == 3 ? (i % 2 ? 127 : -127)
                                   : pick(-127, 127);
          if (g * 64 + i >= k) v = 0;
          q.as<int8_t>()[(m * groups + g) * 64 + i] = int8_t(v);
          total += int32_t(v);
        }
        scale.as<float>()[m * groups + g] = style == 0 ? 0.0f : std::fabs(normal()) * 0.02f;
        sum.as<int32_t>()[m * groups + g] = total;
      }
  }
  infeng_activation view() const {
    infeng_activation a{};
    a.struct_size = sizeof a;
    a.group = 64;
    a.q = matrix(q, INFENG_I8, rows, groups * 64, groups * 64);
    a.scale = matrix(scale, INFENG_F32, rows, groups, groups);
    a.sum = matrix(sum, INFENG_I32, rows, groups, groups);
    return a;
  }
  bool operator==(const Activation& o) const { return q == o.q && scale == o.scale && sum == o.sum; }
  bool intact() const { return q.intact() && scale.intact() && sum.intact(); }
};

inline uint16_t random_half() {
  if (chance(0.02)) return 0;
  if (chance(0.02)) return uint16_t(pick(1, 1023));  // subnormal
  return uint16_t(pick(10, 14) << 10 | pick(0, 1023));
}

struct PackedWeight {
  Bytes data;
  infeng_weight view{};
  PackedWeight() = default;
  PackedWeight(uint32_t format, int64_t n, int64_t k) {
    const int64_t padded = up(k, 64), panels = up(n, 16) / 16;
    int64_t bytes = 0;
    switch (format) {
      case INFENG_WEIGHT_F32:
        bytes = padded * 64;
        break;
      case INFENG_WEIGHT_BF16:
        bytes = padded * 32;
        break;
      case INFENG_WEIGHT_INT8_ROW:
        bytes = 64 + padded * 16;
        break;
      case INFENG_WEIGHT_INT4_G64:
        bytes = up(padded, 128) / 128 * 64 + padded * 8;
        break;
      case INFENG_WEIGHT_INT4_G32:
        bytes = padded / 64 * (64 + 512);
        break;
    }
    data = Bytes(panels * bytes);
    for (int64_t p = 0; p < panels; ++p) fill(format, data.as<uint8_t>(p * bytes), padded);
    view = {sizeof view, format, 0, n, k, panels, bytes, data.as<void>()};
  }

 private:
  static void fill(uint32_t format, uint8_t* out, int64_t padded) {
    const auto bytes = [&](int64_t count) {
      const int64_t style = pick(0, 5);
      for (int64_t i = 0; i < count; ++i) *out++ = uint8_t(style == 0 ? 255 : style == 1 ? 1 : pick(1, 255));
    };
    const auto halves = [&] {
      for (int i = 0; i < 32; ++i, out += 2) {
        const uint16_t h = random_half();
        memcpy(out, &h, 2);
      }
    };
    switch (format) {
      case INFENG_WEIGHT_F32:
        for (int64_t i = 0; i < padded * 16; ++i) reinterpret_cast<float*>(out)[i] = normal();
        break;
      case INFENG_WEIGHT_BF16:
        for (int64_t i = 0; i < padded * 16; ++i) {
          const float v = normal();
          uint32_t u;
          memcpy(&u, &v, 4);
          reinterpret_cast<uint16_t*>(out)[i] = uint16_t(u >> 16);
        }
        break;
      case INFENG_WEIGHT_INT8_ROW:
        for (int i = 0; i < 16; ++i) reinterpret_cast<float*>(out)[i] = std::fabs(normal()) * 0.01f;
        out += 64;
        for (int64_t g = 0; g < padded / 64; ++g) bytes(1024);
        break;
      case INFENG_WEIGHT_INT4_G64:
        for (int64_t g = 0; g < padded / 64; ++g) {
          if (g % 2 == 0) halves();
          bytes(512);
        }
        break;
      case INFENG_WEIGHT_INT4_G32:
        for (int64_t g = 0; g < padded / 64; ++g) {
          halves();
          bytes(512);
        }
        break;
    }
  }
};

// A library as the core sees it.
struct Library {
  infeng_library_desc desc{};
  std::string path;
  explicit Library(const char* file, const char* features) : path(file) {
    void* handle = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (!handle) die("%s", dlerror());
    const auto entry = reinterpret_cast<infeng_library_fn>(dlsym(handle, "infeng_library"));
    if (!entry) die("%s: no infeng_library", file);
    infeng_host host{};
    host.struct_size = sizeof host;
    host.abi_major = INFENG_ABI_MAJOR;
    host.abi_minor = INFENG_ABI_MINOR;
    host.version = "conformance";
    host.features = features;
    desc.struct_size = sizeof desc;
    if (entry(&host, &desc) != INFENG_OK) die("%s: infeng_library failed", file);
  }
  const infeng_kernel* find(const infeng_problem& problem) const {
    for (int32_t i = 0; i < desc.kernel_count; ++i)
      if (desc.kernels[i]->op == problem.op && desc.kernels[i]->accepts(&problem)) return desc.kernels[i];
    return nullptr;
  }
  template <class... A>
  [[noreturn]] static void die(const char* format, A... a) {
    fprintf(stderr, format, a...);
    fputc('\n', stderr);
    exit(2);
  }
};

// Plays the core: scratch full of rubbish, tiles in ranges of random length handed to three workers in turn.
inline void execute(const infeng_kernel& kernel, const infeng_problem& problem, const infeng_args& args) {
  infeng_workspace space{};
  space.struct_size = sizeof space;
  if (kernel.workspace && kernel.workspace(&problem, &space) != INFENG_OK)
    Library::die("%s: workspace failed", kernel.name);
  constexpr int kWorkers = 3;
  Bytes shared(space.shared, 0xFF);
  std::vector<Bytes> scratch(kWorkers, Bytes(space.per_worker, 0xFF));
  char message[256] = "";
  const int32_t phases = kernel.phases ? kernel.phases(&args) : 1;
  for (int32_t phase = 0; phase < phases; ++phase) {
    const int64_t tiles = kernel.tiles(&args, phase);
    std::vector<std::pair<int64_t, int64_t>> ranges;
    for (int64_t first = 0; first < tiles;) {
      const int64_t last = std::min(tiles, first + pick(1, 3));
      ranges.emplace_back(first, last);
      first = last;
    }
    std::shuffle(ranges.begin(), ranges.end(), rng);
    int turn = 0;
    for (const auto& [first, last] : ranges) {
      const int index = turn++ % kWorkers;
      infeng_worker worker{
          sizeof worker, index, kWorkers, sizeof message, shared.as<void>(), scratch[size_t(index)].as<void>(),
          message};
      const infeng_status status = kernel.run(&args, phase, first, last, &worker);
      if (status != INFENG_OK) Library::die("%s: status %d: %s", kernel.name, status, message);
    }
  }
  bool whole = shared.intact();
  for (const Bytes& b : scratch) whole = whole && b.intact();
  if (!whole) Library::die("%s wrote past the end of its scratch memory", kernel.name);
}
