// How weights lie in a panel (docs/format.md): where the lines and scales of 64 inputs are, and the value of a weight.
#pragma once

#include "functions.cuh"

namespace infeng_cuda {
namespace {

template <class T>
DEV T read_as(const uint8_t* address) {
  return *reinterpret_cast<const T*>(address);
}
DEV float read_half(const uint8_t* address) { return float_of_half(read_as<uint16_t>(address)); }

// Input k of output n in lines of four inputs a byte each, and in `lines` lines of nibbles.
DEV int byte_at(const uint8_t* data, int k, int n) { return data[64 * (k / 4) + 4 * n + k % 4]; }
DEV int nibble_at(const uint8_t* data, int lines, int k, int n) {
  const int line = k / 4;
  return line < lines ? byte_at(data, k, n) & 15 : byte_at(data, k - 4 * lines, n) >> 4;
}

struct F32 {
  static constexpr int kInputs = 1;  // of a word of an output
  DEV static float value(const uint8_t* panel, int n, int k) { return read_as<float>(panel + 64 * k + 4 * n); }
  DEV static void widen(unsigned word, float* w) { w[0] = float_of_bits(word); }
};

struct Bf16 {
  static constexpr int kInputs = 2;
  DEV static float value(const uint8_t* panel, int n, int k) {
    return float_of_bf16(read_as<uint16_t>(panel + 64 * (k / 2) + 4 * n + 2 * (k % 2)));
  }
  DEV static void widen(unsigned word, float* w) {
    w[0] = float_of_bits(word << 16);
    w[1] = float_of_bits(word & 0xffff0000u);
  }
};

struct Int8Row {
  DEV static float value(const uint8_t* panel, int n, int k) {
    return static_cast<float>(byte_at(panel + 64, k, n) - 128) * read_as<float>(panel + 4 * n);
  }
};

// Formats below that linear_group.cu multiplies have, for each 64 inputs `g`:
//   scales   where the fp16 scales of 16 outputs are; those of the second half of the inputs, or the factors of minima,
//            follow 32 bytes on
//   lines    in two parts of kPart bytes: line l < 4 of one has inputs kNear * part + 4 l .. + 3 and those kFar inputs
//            on, in low and high nibbles, or as bytes of lines l and l + 4
//   near_of, far_of   four inputs as signed bytes; those of int4 are 16 times (kShift) their number, so that one
//            operation gives them their sign
//   kSums    sums of products that are scaled by themselves: 2, one a part, or 1
//   kStep    groups with the same factors, of formats with minima; else 0

template <int size>
struct Int4 {  // int4-g64, int4-g32
  static constexpr int kSums = 64 / size, kPart = 256, kShift = 4, kStep = 0;
  static constexpr int kNear = size == 64 ? 16 : 32, kFar = size / 2;
  static constexpr bool kBytes = false;
  DEV static int scales(int g) { return size == 64 ? g / 2 * (64 + 1024) + g % 2 * 32 : g * (64 + 512); }
  DEV static int lines(int g) { return size == 64 ? (g / 2 + 1) * 64 + g * 512 : scales(g) + 64; }
  DEV static unsigned near_of(unsigned word) { return (word << 4 & 0xf0f0f0f0u) ^ 0x80808080u; }
  DEV static unsigned far_of(unsigned word) { return (word & 0xf0f0f0f0u) ^ 0x80808080u; }
  DEV static float value(const uint8_t* panel, int n, int k) {
    const int g = k / 64, part = size == 64 ? 0 : k / 32 % 2;
    const int q = nibble_at(panel + lines(g) + part * kPart, size / 8, k % size, n) - 8;
    return static_cast<float>(q) * read_half(panel + scales(g) + 32 * part + 2 * n);
  }
};

struct Int8G32 {
  static constexpr int kSums = 2, kPart = 512, kShift = 0, kStep = 0, kNear = 32, kFar = 16;
  static constexpr bool kBytes = true;
  DEV static int scales(int g) { return g * (64 + 1024); }
  DEV static int lines(int g) { return scales(g) + 64; }
  DEV static unsigned near_of(unsigned word) { return word ^ 0x80808080u; }
  DEV static unsigned far_of(unsigned word) { return word ^ 0x80808080u; }
  DEV static float value(const uint8_t* panel, int n, int k) {
    const int g = k / 64, q = byte_at(panel + lines(g), k % 64, n) - 128;
    return static_cast<float>(q) * read_half(panel + scales(g) + 32 * (k / 32 % 2) + 2 * n);
  }
};

// int4-a256, int4-a128. In front of a group's lines is one with s and t of both halves of an output as its word.
template <int superblock>
struct Affine {
  static constexpr int kSums = 2, kPart = 256, kShift = 0, kStep = superblock / 64, kNear = 32, kFar = 16;
  static constexpr bool kBytes = false;
  DEV static int scales(int g) { return g / kStep * (64 * (1 + 9 * kStep)); }
  DEV static int lines(int g) { return 64 * (2 + g / kStep + 9 * g); }
  DEV static unsigned near_of(unsigned word) { return word & 0x0f0f0f0fu; }
  DEV static unsigned far_of(unsigned word) { return word >> 4 & 0x0f0f0f0fu; }
  DEV static float value(const uint8_t* panel, int n, int k) {
    const int g = k / 64, half = k / 32 % 2;
    const unsigned sub = read_as<unsigned>(panel + lines(g) - 64 + 4 * n) >> 8 * half;
    const int su = static_cast<int>(sub & 255u) * nibble_at(panel + lines(g) + half * kPart, 4, k % 32, n);
    const uint8_t* const factors = panel + scales(g) + 2 * n;
    const float least = read_half(factors + 32) * static_cast<float>(sub >> 16 & 255u);
    return read_half(factors) * static_cast<float>(su) - least;
  }
};

// int4-p32, int5-p32, int6-p32.
template <int bits>
struct SubScaled {
  DEV static float value(const uint8_t* panel, int n, int k) {
    const uint8_t* const block = panel + 64 + k / 128 * (64 + 4 * 64 * bits);
    const int h = k / 32 % 4, in = k % 32, l = in / 4;
    const uint8_t* const lines = block + 64 + h * 64 * bits;
    const int sub = block[4 * n + 2 * (h % 2) + h / 2];
    int u = nibble_at(lines, 4, in, n);
    if (bits == 5) u |= (byte_at(lines + 256, in % 4, n) >> l & 1) << 4;
    if (bits == 6) u |= (byte_at(lines + 256 + l / 4 * 64, in % 4, n) >> 2 * (l % 4) & 3) << 4;
    const int s = (sub & ((1 << (8 - bits)) - 1)) + 1, z = sub >> (8 - bits);
    return static_cast<float>(s * (u - z)) * read_as<float>(panel + 4 * n);
  }
};

}  // namespace

}  // namespace infeng_cuda
