// How integer weights lie in a panel, and their way to bytes. docs/format.md draws the lines.
//
// Both kinds of kernels multiply by mma_s8, with weights as its 16 rows. The order of inputs in an integer sum is free,
// so a lane takes inputs as they lie: of 32, those of line l (the low nibbles) and of line l + 4 (the high ones).
#pragma once

#include "linear_int.h"
#include "steps.cuh"

namespace infeng_cuda {

// What a lane moves at once: a line of 4 outputs, or inputs of a row.
struct alignas(16) Chunk {
  unsigned w[4];
};
struct alignas(8) Pair {
  unsigned w[2];
};
template <class T>
DEV T load(const void* address) {
  return *static_cast<const T*>(address);
}

// Behind the scales of the outputs, for each 128 inputs a line of sub-scales (but for bytes) and four quarters.
template <int bits>
struct Lines {
  static constexpr bool kSubScaled = bits < 8;
  static constexpr int kHead = 64;                        // bytes of the scales
  static constexpr int kSubScales = kSubScaled ? 64 : 0;  // bytes of the sub-scales
  static constexpr int kQuarter = 64 * bits;              // bytes of 32 inputs
  static constexpr int kSuperblock = kSubScales + 4 * kQuarter;
};

constexpr unsigned kSigns = 0x80808080u;

// s, and 128 - s z in each byte, which turn units into weights.
struct Factor {
  unsigned s, bias;
};

// The factor of 32 inputs of an output: `byte` is its word of sub-scales, shifted so that theirs are the lowest bits.
template <int bits>
DEV Factor factor_of(unsigned byte) {
  if constexpr (Lines<bits>::kSubScaled) {
    const unsigned s = (byte & ((1u << (8 - bits)) - 1u)) + 1u, z = byte >> (8 - bits) & ((1u << bits) - 1u);
    return {s, kSigns - s * z * 0x01010101u};
  } else {
    return {1, 0};
  }
}

// Four units to weights. s (u - z) + 128 is a byte, so one product of words makes four of them, and none carries.
DEV unsigned scaled(unsigned units, Factor f) { return (units * f.s + f.bias) ^ kSigns; }

// Two bits of each byte of a word of upper bits, at the place of bits 4 and 5.
DEV unsigned two_bits(unsigned upper, int l) {
  return (l <= 2 ? upper << (4 - 2 * l) : upper >> (2 * l - 4)) & 0x30303030u;
}

struct Twice {
  unsigned near, far;  // inputs 4 l and 4 (l + 4) of a quarter, four of each
};

// The weights of an output in line l. a and b are its words of upper bits; of bytes, a is its word of line l + 4.
template <int bits>
DEV Twice weights_of(unsigned line, unsigned a, unsigned b, int l, Factor f) {
  if constexpr (!Lines<bits>::kSubScaled) {
    return {line ^ kSigns, a ^ kSigns};
  } else {
    unsigned near = line & 0x0f0f0f0fu, far = line >> 4 & 0x0f0f0f0fu;
    if constexpr (bits == 5) {
      near |= a << (4 - l) & 0x10101010u;
      far |= a >> l & 0x10101010u;
    }
    if constexpr (bits == 6) {
      near |= two_bits(a, l);
      far |= two_bits(b, l);
    }
    return {scaled(near, f), scaled(far, f)};
  }
}

// The scale of output `column` of the panels from panel0 on.
DEV float output_scale(const Panels& w, int panel0, int panels, int column) {
  const int panel = column / kPanel < panels ? column / kPanel : panels - 1;
  return reinterpret_cast<const float*>(w.data + (panel0 + panel) * w.panel_bytes)[column % kPanel];
}

DEV const float* scales_of(const Rows8& in, int64_t row) { return in.scale + row * in.scale_stride; }

}  // namespace infeng_cuda
