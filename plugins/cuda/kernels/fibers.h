// An emulated GPU: the threads of a block run as fibers of one thread of the host, in an order that changes from launch
// to launch, so that a missing barrier shows. A warp runs in lockstep at shuffles and matrix products only.
// Divergence (a barrier that some threads of the block, or a shuffle that some lanes, never reach) ends the process.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#define KERNEL(name, Params)                                                                 \
  static void name##_thread(const Params& p);                                                \
  static void name##_entry(const void* p) { name##_thread(*static_cast<const Params*>(p)); } \
  static const ::infeng_cuda::emulated::Registered name##_registered{#name, name##_entry};   \
  static void name##_thread([[maybe_unused]] const Params& p)
#define KERNEL_OF(name, Params, threads, blocks) KERNEL(name, Params)
#define DEV inline
#define SHARED static thread_local
#define UNROLL
#define ROLLED
#define DYNAMIC_SHARED(T, name) T* const name = static_cast<T*>(::infeng_cuda::emulated::dynamic_shared())

namespace infeng_cuda {

struct Index {
  unsigned x = 0, y = 0, z = 0;
};

namespace emulated {

// Makes a kernel known by its name.
struct Registered {
  Registered(const char* name, void (*entry)(const void*));
};

void* dynamic_shared();
enum class Wait : int { none, block, warp };
void pause(Wait why);
unsigned lane();                       // of the running thread in its warp
void* exchange(unsigned lane_number);  // 64 bytes that each lane of the running warp shows to the others

}  // namespace emulated

extern thread_local Index threadIdx_, blockIdx_, blockDim_, gridDim_;
#define threadIdx ::infeng_cuda::threadIdx_
#define blockIdx ::infeng_cuda::blockIdx_
#define blockDim ::infeng_cuda::blockDim_
#define gridDim ::infeng_cuda::gridDim_

inline void sync_block() { emulated::pause(emulated::Wait::block); }
inline void sync_warp() { emulated::pause(emulated::Wait::warp); }

template <class T>
T shuffle(T value, int from) {
  static_assert(sizeof(T) <= 64);
  std::memcpy(emulated::exchange(emulated::lane()), &value, sizeof value);
  sync_warp();
  T found;
  std::memcpy(&found, emulated::exchange(static_cast<unsigned>(from) & 31u), sizeof found);
  sync_warp();
  return found;
}
template <class T>
T shuffle_xor(T value, int mask) {
  return shuffle(value, static_cast<int>(emulated::lane()) ^ mask);
}

inline unsigned warp_max(unsigned value) {
  for (int mask = 16; mask > 0; mask /= 2) {
    const unsigned other = shuffle_xor(value, mask);
    value = other > value ? other : value;
  }
  return value;
}

inline int dot4_u8(unsigned a, int b, int c) {
  for (int i = 0; i < 4; ++i) c += static_cast<int>(static_cast<uint8_t>(a >> 8 * i)) * static_cast<int8_t>(b >> 8 * i);
  return c;
}
inline int dot4_s8(int a, int b, int c) {
  for (int i = 0; i < 4; ++i) c += static_cast<int8_t>(a >> 8 * i) * static_cast<int8_t>(b >> 8 * i);
  return c;
}

// The fragments of mma.m16n8k32: lane 4 g + t holds bytes 4 t .. 4 t + 3 of row g of a (and of row g + 8, and 16 bytes
// on), of column g of b, and elements 2 t, 2 t + 1 of rows g and g + 8 of d.
template <class Dot>
inline void mma(Dot dot, int (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  const unsigned own = emulated::lane();
  auto* shown = static_cast<unsigned*>(emulated::exchange(own));
  for (int i = 0; i < 4; ++i) shown[i] = a[i];
  for (int i = 0; i < 2; ++i) shown[4 + i] = b[i];
  sync_warp();
  const auto word = [](unsigned lane, int i) { return static_cast<const unsigned*>(emulated::exchange(lane))[i]; };
  for (int i = 0; i < 4; ++i) {
    const unsigned row = own / 4, column = own % 4 * 2 + static_cast<unsigned>(i & 1);
    for (unsigned part = 0; part < 8; ++part) {  // 4 bytes of k each
      const unsigned t = part % 4;
      const unsigned x = word(row * 4 + t, (i >> 1) + 2 * static_cast<int>(part / 4));
      d[i] = dot(x, static_cast<int>(word(column * 4 + t, 4 + static_cast<int>(part / 4))), d[i]);
    }
  }
  sync_warp();
}
inline void mma_s8(int (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  mma([](unsigned x, int y, int z) { return dot4_s8(static_cast<int>(x), y, z); }, d, a, b);
}
inline void mma_u8(int (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) { mma(dot4_u8, d, a, b); }

inline float float_of_bits(unsigned bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
inline unsigned bits_of_float(float value) {
  unsigned bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}
inline float float_of_half(uint16_t half) {
  const unsigned sign = (half & 0x8000u) << 16, exponent = (half >> 10) & 31u, fraction = half & 1023u;
  if (exponent == 0) return (sign != 0 ? -1.0f : 1.0f) * (static_cast<float>(fraction) * 0x1p-24f);
  return float_of_bits(sign | (exponent == 31 ? 255u << 23 : (exponent + 112u) << 23) | fraction << 13);
}

inline unsigned permute(unsigned a, unsigned b, unsigned selector) {
  const uint64_t both = uint64_t{b} << 32 | a;
  unsigned out = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned which = selector >> 4 * i & 15u;
    unsigned byte = static_cast<unsigned>(both >> 8 * (which & 7u)) & 255u;
    if (which & 8u) byte = byte & 128u ? 255u : 0u;
    out |= byte << 8 * i;
  }
  return out;
}

inline unsigned stream_word(const void* address) { return *static_cast<const unsigned*>(address); }
struct Words {
  unsigned x, y, z, w;
};
inline Words stream_words(const void* address) {
  Words words;
  std::memcpy(&words, address, sizeof words);
  return words;
}
inline void prefetch(const void*) {}
inline void copy_async(void* shared, const void* global) { std::memcpy(shared, global, 16); }
inline void copy_word_async(void* shared, const void* global) { std::memcpy(shared, global, 4); }
inline void end_copies() {}
template <int n>
void wait_copies() {}

}  // namespace infeng_cuda
