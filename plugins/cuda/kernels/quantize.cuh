// Rounding of rows to int8, in groups or as a whole, rotated or not.
//
// A warp takes 256 columns at a time: lane l has columns 4 l .. 4 l + 3 of each half of 128. So a word of q belongs to
// one lane and a group of 64 to 16 lanes. The pairs of a rotation's butterflies are in one lane (1, 2 and 128 columns
// apart) or in two (4 to 64 apart).
#pragma once

#include "functions.cuh"
#include "quantize.h"

namespace infeng_cuda {
namespace {

DEV int thread_number() { return static_cast<int>(threadIdx.x); }
DEV int thread_count() { return static_cast<int>(blockDim.x); }
DEV int lane_number() { return static_cast<int>(threadIdx.x & 31u); }
DEV int warp_number() { return static_cast<int>(threadIdx.x >> 5); }

struct alignas(16) Quad {
  float v[4];
};

DEV bool is_quad(const float* address) { return (reinterpret_cast<uintptr_t>(address) & 15u) == 0; }

// Columns [column, column + 4) of a row of `columns`; those behind its end are 0.
DEV Quad read4(const float* row, int column, int columns) {
  if (column + 4 <= columns && is_quad(row + column)) return *reinterpret_cast<const Quad*>(row + column);
  Quad quad{};
  UNROLL for (int i = 0; i < 4; ++i) {
    if (column + i < columns) quad.v[i] = row[column + i];
  }
  return quad;
}

DEV void write4(float* row, int column, int columns, const Quad& quad) {
  if (column + 4 <= columns && is_quad(row + column)) {
    *reinterpret_cast<Quad*>(row + column) = quad;
    return;
  }
  UNROLL for (int i = 0; i < 4; ++i) {
    if (column + i < columns) row[column + i] = quad.v[i];
  }
}

// Bits of magnitudes have the order of their values, and NaN is the largest.
DEV unsigned larger(unsigned a, unsigned b) { return a > b ? a : b; }
DEV unsigned magnitude(float x) { return bits_of_float(x) & 0x7fffffffu; }
DEV unsigned magnitude(const float (&v)[8], int half) {
  const float* h = v + 4 * half;
  return larger(larger(magnitude(h[0]), magnitude(h[1])), larger(magnitude(h[2]), magnitude(h[3])));
}

DEV void butterfly(float& a, float& b) {
  const float sum = a + b, difference = a - b;
  a = sum;
  b = difference;
}

// Rotates the 256 columns of a warp in blocks of 64, 128 or 256.
DEV void rotate_held(float (&v)[8], int block) {
  const float factor = block == 256 ? 0.0625f : 0.125f;
  UNROLL for (int i = 0; i < 8; ++i) v[i] = v[i] * factor;
  UNROLL for (int i = 0; i < 8; i += 2) butterfly(v[i], v[i + 1]);
  UNROLL for (int i = 0; i < 8; i += 4) {
    butterfly(v[i], v[i + 2]);
    butterfly(v[i + 1], v[i + 3]);
  }
  UNROLL for (int mask = 1; mask <= 16; mask *= 2) {
    if (mask == 16 && block == 64) break;
    const bool is_upper = (lane_number() & mask) != 0;
    UNROLL for (int i = 0; i < 8; ++i) {
      const float other = shuffle_xor(v[i], mask);
      v[i] = is_upper ? other - v[i] : v[i] + other;
    }
  }
  if (block != 256) return;
  UNROLL for (int i = 0; i < 4; ++i) butterfly(v[i], v[i + 4]);
}

// The largest magnitudes of the groups of both halves.
DEV void group_most(const float (&v)[8], int group, unsigned (&most)[2]) {
  UNROLL for (int half = 0; half < 2; ++half) {
    most[half] = magnitude(v, half);
    UNROLL for (int mask = 1; mask <= 8; mask *= 2) most[half] = larger(most[half], shuffle_xor(most[half], mask));
    if (group >= 128) most[half] = larger(most[half], shuffle_xor(most[half], 16));
  }
  if (group == 256) most[0] = most[1] = larger(most[0], most[1]);
}

// The largest of all threads of the block.
DEV unsigned block_most(unsigned most) {
  SHARED unsigned of_warps[32];
  most = warp_max(most);
  sync_block();  // all have read the values of an earlier call
  if (lane_number() == 0) of_warps[warp_number()] = most;
  sync_block();
  return warp_max(lane_number() < thread_count() / 32 ? of_warps[lane_number()] : 0u);
}

// Writes 256 columns from `first` on.
DEV void round_held(const Rounding& to, int64_t row, int first, const float (&v)[8], const unsigned (&most)[2]) {
  const int padded = (to.columns + kGroup - 1) / kGroup * kGroup;
  UNROLL for (int half = 0; half < 2; ++half) {
    const float amax = float_of_bits(most[half]);
    const bool is_tiny = amax < 0x1p-100f;
    const float inverse = is_tiny ? 0.0f : 127.0f / amax;
    unsigned word = 0;
    int sum = 0;
    UNROLL for (int i = 0; i < 4; ++i) {
      float value = rintf(v[4 * half + i] * inverse);
      value = value < 127.0f ? value : 127.0f;
      value = value > -127.0f ? value : -127.0f;
      const int q = static_cast<int>(value);
      sum += q;
      word |= (static_cast<unsigned>(q) & 255u) << 8 * i;
    }
    UNROLL for (int mask = 1; mask <= 8; mask *= 2) sum += shuffle_xor(sum, mask);
    const int column = first + 128 * half + 4 * lane_number();
    if (column >= padded) continue;
    *reinterpret_cast<unsigned*>(to.q + row * to.q_stride + column) = word;
    if (lane_number() % 16 != 0) continue;
    to.scale[row * to.scale_stride + column / kGroup] = is_tiny ? 0.0f : amax / 127.0f;
    to.sum[row * to.sum_stride + column / kGroup] = sum;
  }
}

// Rounds columns [begin, end) of a row; all threads of the block call it. begin is a multiple of 256, and a row with
// one scale is rounded as a whole. read(column) gives 4 columns.
template <class Read>
DEV void round_row(const Rounding& to, int64_t row, int begin, int end, Read read) {
  const int stride = thread_count() / 32 * kWarpColumns;
  float v[8];
  const auto hold = [&](int first) {
    UNROLL for (int half = 0; half < 2; ++half) {
      const int column = first + 128 * half + 4 * lane_number();
      const Quad quad = read(column);
      UNROLL for (int i = 0; i < 4; ++i) v[4 * half + i] = column + i < to.columns ? quad.v[i] : 0.0f;
    }
    if (to.block != 0) rotate_held(v, to.block);
  };
  const bool is_row = to.group == 0, holds_all = end <= stride;
  unsigned largest = 0, most[2] = {};
  // The first turn finds the largest of a whole row, the second rounds.
  ROLLED for (int turn = is_row ? 0 : 1; turn < 2; ++turn) {
    ROLLED for (int first = begin + warp_number() * kWarpColumns; first < end; first += stride) {
      if (turn == 0 || !is_row || !holds_all) hold(first);
      if (turn == 0) {
        largest = larger(largest, larger(magnitude(v, 0), magnitude(v, 1)));
        continue;
      }
      if (!is_row) group_most(v, to.group, most);
      round_held(to, row, first, v, most);
    }
    if (turn == 0) most[0] = most[1] = block_most(largest);
  }
}

}  // namespace
}  // namespace infeng_cuda
