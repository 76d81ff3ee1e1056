// KV_APPEND: a warp brings K or V of a row and head to the form of the cache, and writes it to the row's position.
#include "kv_append.h"

#include "cache_formats.cuh"

namespace infeng_cuda {
namespace {

// A head in shared memory, and where it goes.
struct Head {
  const float* x;
  int dim;
  bool is_v;
  uint8_t* to;  // K or V of the block
  float* scale;
  int token;  // of the block
  int lane;

  // K has 16 positions of an element side by side, V the elements of a position.
  DEV int place(int d) const { return is_v ? token * dim + d : d * kBlockTokens + token; }
  DEV int padded() const { return (dim + 15) / 16 * 16; }
};

DEV void write_int8(const Head& h, Kind kind) {
  const float amax = largest_magnitude(h.x, h.dim, h.lane);
  const bool is_tiny = amax < 0x1p-100f;
  const float inverse = is_tiny ? 0.0f : 127.0f / amax;
  if (h.lane == 0) h.scale[h.token] = is_tiny ? 0.0f : amax / 127.0f;
  const auto q = [&](int d) { return d < h.dim ? int8_of(h.x[d], inverse) : 0; };
  if (!h.is_v) {
    for (int quad = h.lane; 4 * quad < h.dim; quad += 32) {
      unsigned word = 0;
      for (int i = 0; i < 4; ++i) word |= static_cast<unsigned>(q(4 * quad + i) + 128) << 8 * i;
      reinterpret_cast<unsigned*>(h.to)[h.place(quad)] = word;
    }
  } else if (kind == kInt8) {
    for (int d = h.lane; d < h.dim; d += 32) h.to[h.place(d)] = static_cast<uint8_t>(q(d));
  } else {
    uint8_t* const line = h.to + h.token / 4 * 4 * h.padded() + h.token % 4;
    for (int d = h.lane; d < h.padded(); d += 32) line[4 * d] = static_cast<uint8_t>(q(d));
  }
}

DEV void write_int4(const Head& h, Kind kind) {
  const float amax = largest_magnitude(h.x, h.dim, h.lane);
  float lowest = 0.0f;
  for (int d = h.lane; d < h.dim; d += 32) lowest = h.x[d] < lowest ? h.x[d] : lowest;
  lowest = -largest_of_warp(-lowest);
  const bool is_tiny = amax < 0x1p-100f;
  const float extreme = lowest == -amax ? lowest : amax;  // of two equal magnitudes the negative one
  const float inverse = is_tiny ? 0.0f : -8.0f / extreme;
  if (h.lane == 0) h.scale[h.token] = is_tiny ? 0.0f : extreme / -8.0f;
  const auto nibble = [&](int d) {
    const float q = d < h.dim ? clamped(rintf(h.x[d] * inverse), -8.0f, 7.0f) : 0.0f;
    return static_cast<unsigned>(static_cast<int>(q) + 8);
  };
  if (!h.is_v) {  // a line has 4 bytes of each position: two elements 32 apart, or 4 apart behind the last 64
    for (int line = h.lane; line < h.dim / 8; line += 32) {
      const bool is_whole = line < h.dim / 64 * 8;
      const int d = is_whole ? line / 8 * 64 + line % 8 * 4 : line * 8, apart = is_whole ? 32 : 4;
      unsigned word = 0;
      for (int i = 0; i < 4; ++i) word |= (nibble(d + i) | nibble(d + i + apart) << 4) << 8 * i;
      reinterpret_cast<unsigned*>(h.to)[h.place(line)] = word;
    }
    return;
  }
  for (int i = h.lane; i < h.padded() / 2; i += 32) {
    const int d = i / 8 * 16 + i % 8;
    const int at = kind == kInt4 ? h.token * h.padded() / 2 + i
                                 : (h.token / 4 * h.padded() / 16 + i / 8) * 32 + i % 8 * 4 + h.token % 4;
    h.to[at] = static_cast<uint8_t>(nibble(d) | nibble(d + 8) << 4);
  }
}

DEV void write_e4m3(const Head& h) {
  const float amax = largest_magnitude(h.x, h.dim, h.lane);
  const bool is_tiny = amax < 0x1p-100f;
  const float inverse = is_tiny ? 0.0f : 1.75f / amax;
  if (h.lane == 0) h.scale[h.token] = is_tiny ? 0.0f : amax / 1.75f;
  for (int d = h.lane; d < h.dim; d += 32) {
    h.to[h.place(d)] = is_tiny ? uint8_t{0} : e4m3_of(clamped(h.x[d] * inverse, -1.75f, 1.75f));
  }
}

DEV void write(const Head& h, Kind kind) {
  switch (kind) {
    case kFloat32:
      for (int d = h.lane; d < h.dim; d += 32) reinterpret_cast<float*>(h.to)[h.place(d)] = h.x[d];
      break;
    case kFloat16:
      for (int d = h.lane; d < h.dim; d += 32) reinterpret_cast<uint16_t*>(h.to)[h.place(d)] = half_of(h.x[d]);
      break;
    case kFloat8:
      write_e4m3(h);
      break;
    case kInt8:
    case kInt8Lines:
      write_int8(h, kind);
      break;
    default:
      write_int4(h, kind);
  }
}

}  // namespace

KERNEL_OF(kv_append, KvAppend, 32 * kAppendWarps, 1) {
  SHARED float held[kAppendWarps][kMostHead];
  const int warp = static_cast<int>(threadIdx.x >> 5), lane = static_cast<int>(threadIdx.x & 31u);
  const int item = static_cast<int>(blockIdx.x) * kAppendWarps + warp, items = 2 * p.cache.kv_heads;
  const int number = item / items, head = item % items / 2;
  const bool is_v = item % 2 != 0;
  if (number >= p.rows) return;
  const Span& span = p.spans[span_at<&Span::first_row>(p.spans, p.span_count, number)];
  const int64_t row = span.row + number - span.first_row;
  const int position = span.pos0 + number - span.first_row;
  const int block = span.table[position / kBlockTokens];
  if (block < 0 || block >= p.cache.blocks) return;

  const int dim = is_v ? p.cache.v_dim : p.cache.dim;
  const float* from = is_v ? p.v + row * p.v_row + head * p.v_head : p.k + row * p.k_row + head * p.k_head;
  const float factor = p.rotated != 0 ? 1.0f / static_cast<float>(dim & -dim) : 1.0f;
  float* const x = held[warp];
  for (int d = lane; d < dim; d += 32) x[d] = from[d] * factor;
  if (p.rotated != 0)
    hadamard(x, dim, lane);
  else
    sync_warp();
  uint8_t* const slab = slab_of(p.cache, block, head);
  const Head h{x,
               dim,
               is_v,
               slab + (is_v ? p.cache.v_offset : p.cache.k_offset),
               reinterpret_cast<float*>(slab + (is_v ? p.cache.v_scale_offset : p.cache.k_scale_offset)),
               position % kBlockTokens,
               lane};
  write(h, is_v ? p.v_kind : p.k_kind);
}

}  // namespace infeng_cuda
