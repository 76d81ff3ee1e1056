// Number formats of the cache and its rotation, as docs/numerics.md defines them.
#pragma once

#include "functions.cuh"
#include "kv_append.h"

namespace infeng_cuda {
namespace {

DEV int min_of(int a, int b) { return a < b ? a : b; }
DEV int max_of(int a, int b) { return a > b ? a : b; }

DEV float clamped(float x, float low, float high) {
  x = x < high ? x : high;
  return x > low ? x : low;
}

// The slab of a kv head in a block.
DEV uint8_t* slab_of(const Cache& cache, int block, int head) {
  return cache.base + block * cache.block_stride + head * cache.head_stride;
}

// The last span of a launch that does not begin behind `at`, counted in rows or in items.
template <int32_t Span::*begin>
DEV int span_at(const Span* spans, int count, int at) {
  int low = 0, high = count;
  while (low + 1 < high) {
    const int middle = (low + high) / 2;
    (spans[middle].*begin <= at ? low : high) = middle;
  }
  return low;
}

// The largest of the lanes of a warp.
DEV float largest_of_warp(float x) {
  UNROLL for (int mask = 16; mask > 0; mask /= 2) {
    const float other = shuffle_xor(x, mask);
    x = other > x ? other : x;
  }
  return x;
}

// x becomes H x, in blocks of the largest power of two that divides its size. x is shared memory of the calling warp.
DEV void hadamard(float* x, int dim, int lane) {
  sync_warp();
  const int block = dim & -dim;
  for (int h = 1; h < block; h *= 2) {
    for (int i = lane; i < dim / 2; i += 32) {
      float* const pair = x + 2 * (i & -h) + (i & (h - 1));
      const float a = pair[0], b = pair[h];
      pair[0] = a + b;
      pair[h] = a - b;
    }
    sync_warp();
  }
}

DEV float largest_magnitude(const float* x, int dim, int lane) {
  float amax = 0.0f;
  for (int d = lane; d < dim; d += 32) {
    const float magnitude = fabsf(x[d]);
    amax = magnitude > amax ? magnitude : amax;
  }
  return largest_of_warp(amax);
}

// An int8 of quantize, whose factor is 0 where all values are tiny.
DEV int int8_of(float x, float inverse) { return static_cast<int>(clamped(rintf(x * inverse), -127.0f, 127.0f)); }

// To binary16: to nearest even; what is beyond the largest half becomes the largest half.
DEV uint16_t half_of(float value) {
  value = clamped(value, -65504.0f, 65504.0f);
  const unsigned bits = bits_of_float(value), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
  if (magnitude < 0x38800000u) {  // below 2^-14: a multiple of 2^-24
    return static_cast<uint16_t>(sign | static_cast<unsigned>(rintf(float_of_bits(magnitude) * 0x1p24f)));
  }
  return static_cast<uint16_t>(sign | (((magnitude + 0xfffu + (magnitude >> 13 & 1u)) >> 13) - (112u << 10)));
}

// To e4m3 over 256, |value| <= 1.75: the nearest, ties to an even code.
DEV uint8_t e4m3_of(float value) {
  const unsigned bits = bits_of_float(value), sign = bits >> 24 & 0x80u, magnitude = bits & 0x7fffffffu;
  if (magnitude < 0x38800000u) {  // below 2^-14: a multiple of 2^-17
    return static_cast<uint8_t>(sign | static_cast<unsigned>(rintf(float_of_bits(magnitude) * 0x1p17f)));
  }
  return static_cast<uint8_t>(sign | (((magnitude + 0x7ffffu + (magnitude >> 20 & 1u)) >> 20) - (112u << 3)));
}

// The code of an e4m3 number over 256 is the upper half of a binary16, whose exponent bias is larger by 8.
DEV float float_of_e4m3(unsigned code) {
  return float_of_half(static_cast<uint16_t>((code & 0x80u) << 8 | (code & 0x7fu) << 7));
}

// float(u - offset) for small u, whose bits become the last ones of 2^23 + u.
DEV float small_float(unsigned u, float offset) { return float_of_bits(0x4b000000u ^ u) - (0x1p23f + offset); }

}  // namespace
}  // namespace infeng_cuda
