// Attention of a few queries over one split of the cache.
#pragma once

#include "attention.h"
#include "cache_formats.cuh"

namespace infeng_cuda {
namespace {

constexpr int kSplitBlocks = kSplit / kBlockTokens;
constexpr unsigned kNone = 0xff800000u;  // -infinity

template <class T, int n>
struct alignas(sizeof(T) * n) Several {
  T v[n];
};

// ------------------------------------------------------------------------------------------------ numbers of a cache

template <Kind kind>
constexpr bool kIsInteger = kind == kInt8 || kind == kInt4;
template <Kind kind>
constexpr bool kHasScale = kind != kFloat32 && kind != kFloat16;
template <Kind kind>
constexpr bool kIsLines = kind == kInt8Lines || kind == kInt4Lines;

// Four nibbles u of a word as signed bytes 16 (u - 8).
DEV unsigned sixteenfold(unsigned word, bool high) { return ((high ? word : word << 4) & 0xf0f0f0f0u) ^ 0x80808080u; }
template <Kind kind>
constexpr int kExtraBits = kind == kInt4 || kind == kInt4Lines ? 4 : 0;  // of sums of those

// Elements 4 quad .. 4 quad + 3 of a token's K as signed bytes; 0 behind the end.
template <Kind kind>
DEV unsigned key_word(const uint8_t* k, int token, int quad, int dim) {
  if (4 * quad >= dim) return 0;
  const auto* const words = reinterpret_cast<const unsigned*>(k) + token;
  if (kind == kInt8) return words[quad * kBlockTokens] ^ 0x80808080u;
  const int whole = dim / 64 * 16, rest = quad - whole;  // quads in lines of each 64 elements, and behind them
  if (rest >= 0) return sixteenfold(words[(whole + rest) / 2 * kBlockTokens], rest % 2 != 0);
  return sixteenfold(words[(quad / 16 * 8 + quad % 8) * kBlockTokens], quad / 8 % 2 != 0);
}

// Number i of K or V.
template <Kind kind>
DEV float number_at(const uint8_t* numbers, int i) {
  if constexpr (kind == kFloat32) return reinterpret_cast<const float*>(numbers)[i];
  if constexpr (kind == kFloat16) return float_of_half(reinterpret_cast<const uint16_t*>(numbers)[i]);
  if constexpr (kind == kFloat8) return float_of_e4m3(numbers[i]);
  return small_float(numbers[i] ^ 0x80u, 128.0f);
}

// Element d of a token's V.
template <Kind kind>
DEV float value_at(const uint8_t* v, int token, int d, int dim) {
  if constexpr (kind != kInt4) return number_at<kind>(v, token * dim + d);
  const unsigned byte = v[token * ((dim + 15) / 16 * 8) + d / 16 * 8 + d % 8];
  return small_float(d % 16 < 8 ? byte & 15u : byte >> 4, 8.0f);
}

// Columns 16 c + g and 16 c + 8 + g of V of tokens 4 quad .. 4 quad + 3, as signed bytes.
template <Kind kind>
DEV void value_words(const uint8_t* v, int quad, int c, int g, int dim, unsigned (&both)[2]) {
  const int line = quad * ((dim + 15) / 16) + c;
  if constexpr (kind == kInt8Lines) {
    const auto* const words = reinterpret_cast<const unsigned*>(v) + line * 16 + g;
    both[0] = words[0];
    both[1] = words[8];
  } else {
    const unsigned word = reinterpret_cast<const unsigned*>(v)[line * 8 + g];
    both[0] = sixteenfold(word, false);
    both[1] = sixteenfold(word, true);
  }
}

// ------------------------------------------------------------------------------------------------ positions and rows

DEV int begin_of(const Attention& p, int position) {
  return p.window > 0 && position >= p.window ? position - p.window + 1 : 0;
}
DEV int end_of(const Attention& p, const Span& span, int position) {
  return p.is_full != 0 ? span.length : position + 1;
}

// Where a row and head has its result of a split.
DEV float* part_of(const Attention& p, const Span& span, int row, int head, int split) {
  return p.parts + (span.parts + (static_cast<int64_t>(row) * p.heads + head) * span.splits + split) * p.part_stride;
}

// What a block does. Query i is of row i / heads and head first_head + i % heads.
struct Task {
  const Span& span;
  int row;       // of the span, the first
  int position;  // of that row
  int queries;
  int heads;
  int first_head;
  int kv_head;
  int split;  // from the first one that the rows see
  int start;  // its first position
  int begin;  // positions from there on that some row sees
  int end;
};

DEV Task task_of(const Attention& p) {
  const int item = static_cast<int>(blockIdx.x), y = static_cast<int>(blockIdx.y);
  const Span& span = p.spans[span_at<&Span::first_item>(p.spans, p.span_count, item)];
  const int group = (item - span.first_item) / span.splits, split = (item - span.first_item) % span.splits;
  const int portions = (p.shared_heads + p.block_heads - 1) / p.block_heads;  // of the heads that share a kv head
  const int kv_head = y / portions, first = y % portions * p.block_heads;
  const int heads = min_of(p.block_heads, p.shared_heads - first);
  const int row = group * p.group_rows, rows = min_of(p.group_rows, span.rows - row), position = span.pos0 + row;
  const int start = (begin_of(p, position) / kSplit + split) * kSplit;
  const int begin = max_of(begin_of(p, position) - start, 0);
  const int end = min_of(end_of(p, span, position + rows - 1) - start, kSplit);
  const int first_head = kv_head * p.shared_heads + first;
  return {span, row, position, rows * heads, heads, first_head, kv_head, split, start, begin, end};
}

// What the threads of a block share beside its dynamic memory.
struct Board {
  const uint8_t* slabs[kSplitBlocks];  // null: no row sees any of the 16 positions
  float k_scale[kSplit];
  float v_scale[kSplit];
  int low[kMostQueries];  // positions of the split that a query sees
  int high[kMostQueries];
  float query_scale[kMostQueries];
  float largest[kMostQueries];
  float sum[kMostQueries];
  float unit[kMostQueries];  // of the shares
};

struct Threads {
  int own, count, warp, warps, lane;
};

DEV Threads threads_of_block() {
  const int own = static_cast<int>(threadIdx.x), count = static_cast<int>(blockDim.x);
  return {own, count, own / 32, count / 32, own % 32};
}

DEV void find_slabs(const Attention& p, const Task& t, const Threads& th, Board& b) {
  if (th.own < kSplitBlocks) {
    const int first = th.own * kBlockTokens;
    const bool is_seen = first < t.end && first + kBlockTokens > t.begin;
    const int block = is_seen ? t.span.table[t.start / kBlockTokens + th.own] : -1;
    b.slabs[th.own] = block >= 0 && block < p.cache.blocks ? slab_of(p.cache, block, t.kv_head) : nullptr;
  }
  const int i = th.own - 32;
  if (i >= 0 && i < kMostQueries) {
    const int position = t.position + i / t.heads;
    b.low[i] = i < t.queries ? max_of(begin_of(p, position) - t.start, 0) : 0;
    b.high[i] = i < t.queries ? min_of(end_of(p, t.span, position) - t.start, kSplit) : 0;
  }
}

template <Kind k, Kind v>
DEV void read_scales(const Attention& p, const Task& t, const Threads& th, Board& b) {
  for (int i = th.own; i < kSplit; i += th.count) {
    const uint8_t* const slab = i >= t.begin && i < t.end ? b.slabs[i / kBlockTokens] : nullptr;
    const auto scale = [&](int offset) {
      return slab == nullptr ? 0.0f : reinterpret_cast<const float*>(slab + offset)[i % kBlockTokens];
    };
    if (kHasScale<k>) b.k_scale[i] = scale(p.cache.k_scale_offset);
    if (kHasScale<v>) b.v_scale[i] = scale(p.cache.v_scale_offset);
  }
}

// Brings K or V of each block to the L2 cache, since many threads would wait for it one after another.
DEV void prefetch_blocks(const Threads& th, const Board& b, int offset, int bytes) {
  for (int i = th.warp; i < kSplitBlocks; i += th.warps) {
    if (b.slabs[i] == nullptr) continue;
    for (int at = th.lane * 128; at < bytes; at += 32 * 128) prefetch(b.slabs[i] + offset + at);
  }
}

// ----------------------------------------------------------------------------------------------------------- queries

// Queries as floats, rotated, and as int8 where K is.
template <Kind kind, bool rotated>
DEV void read_queries(const Attention& p, const Task& t, const Threads& th, Board& b, float* queries,
                      unsigned* rounded) {
  const int dim = p.cache.dim;
  for (int i = th.warp; i < t.queries; i += th.warps) {
    const int64_t row = t.span.row + t.row + i / t.heads;
    const float* const from = p.q + row * p.q_row + (t.first_head + i % t.heads) * p.q_head;
    float* const x = queries + i * p.query_stride;
    for (int d = th.lane; d < dim; d += 32) x[d] = from[d];
    if (rotated) hadamard(x, dim, th.lane);
    if (!kIsInteger<kind>) continue;
    const float amax = largest_magnitude(x, dim, th.lane);  // all lanes have written x once all know it
    const bool is_tiny = amax < 0x1p-100f;
    const float inverse = is_tiny ? 0.0f : 127.0f / amax;
    if (th.lane == 0) b.query_scale[i] = is_tiny ? 0.0f : amax / 127.0f;
    sync_warp();
    for (int quad = th.lane; quad < (dim + 31) / 32 * 8; quad += 32) {
      unsigned word = 0;
      UNROLL for (int j = 0; j < 4; ++j) {
        const int d = 4 * quad + j;
        word |= static_cast<unsigned>(d < dim ? int8_of(x[d], inverse) & 255 : 0) << 8 * j;
      }
      rounded[i * p.rounded_stride + quad] = word;
    }
  }
}

// The fragment of queries [16 tile, 16 tile + 16), or of their shares, for 32 columns.
DEV void read_fragment(const unsigned* rows, int stride, int tile, int word, int g, unsigned (&a)[4]) {
  const unsigned* const at = rows + (16 * tile + g) * stride + word;
  a[0] = at[0];
  a[1] = at[8 * stride];
  a[2] = at[4];
  a[3] = at[8 * stride + 4];
}

// ------------------------------------------------------------------------------------------------------------ scores

// Products of queries and K, scores[query][position]. A warp takes 16 positions and all queries.
template <Kind kind, int tiles>
DEV void multiply_integers(const Attention& p, const Task& t, const Threads& th, const Board& b,
                           const unsigned* rounded, float* scores) {
  constexpr int kSteps = 4;  // of 32 elements, whose K is read at a time
  const int g = th.lane / 4, l = th.lane % 4, dim = p.cache.dim;
  for (int block = th.warp; block < kSplitBlocks; block += th.warps) {
    if (b.slabs[block] == nullptr) continue;
    const uint8_t* const k = b.slabs[block] + p.cache.k_offset;
    int sums[tiles][2][4] = {};
    for (int first = 0; first < dim; first += 32 * kSteps) {
      unsigned words[kSteps][2][2];
      UNROLL for (int i = 0; i < kSteps; ++i) {
        UNROLL for (int half = 0; half < 2; ++half) {
          const int quad = first / 4 + 8 * i + 4 * half + l;
          UNROLL for (int n = 0; n < 2; ++n) words[i][n][half] = key_word<kind>(k, 8 * n + g, quad, dim);
        }
      }
      UNROLL for (int i = 0; i < kSteps; ++i) {
        UNROLL for (int tile = 0; tile < tiles; ++tile) {
          if (first + 32 * i >= dim || 16 * tile >= t.queries) continue;
          unsigned a[4];
          read_fragment(rounded, p.rounded_stride, tile, first / 4 + 8 * i + l, g, a);
          UNROLL for (int n = 0; n < 2; ++n) mma_s8(sums[tile][n], a, words[i][n]);
        }
      }
    }
    UNROLL for (int tile = 0; tile < tiles; ++tile) {
      UNROLL for (int i = 0; i < 4; ++i) {
        const int query = 16 * tile + 8 * (i / 2) + g;
        if (query >= t.queries) continue;
        const int* const two = sums[tile][i % 2] + 2 * (i / 2);
        auto* const to = scores + query * kScoreStride + block * kBlockTokens + 8 * (i % 2) + 2 * l;
        *reinterpret_cast<Several<float, 2>*>(to) = {static_cast<float>(two[0] >> kExtraBits<kind>),
                                                     static_cast<float>(two[1] >> kExtraBits<kind>)};
      }
    }
  }
}

// The same of floats, each sum in the order of elements: a thread takes a position and `most` queries at a time.
template <Kind kind, int most>
DEV void multiply_floats(const Attention& p, const Task& t, const Threads& th, const Board& b, const float* queries,
                         float* scores) {
  const int dim = p.cache.dim;
  for (int at = th.own; at < kSplit; at += th.count) {
    const uint8_t* const slab = b.slabs[at / kBlockTokens];
    if (slab == nullptr) continue;
    const uint8_t* const k = slab + p.cache.k_offset;
    const int token = at % kBlockTokens;
    for (int first = 0; first < t.queries; first += most) {
      const float* const x = queries + first * p.query_stride;
      float sums[most] = {};
      int d = 0;
      for (; d + 4 <= dim; d += 4) {
        float elements[4];
        UNROLL for (int i = 0; i < 4; ++i) elements[i] = number_at<kind>(k, (d + i) * kBlockTokens + token);
        UNROLL for (int j = 0; j < most; ++j) {
          const auto four = *reinterpret_cast<const Several<float, 4>*>(x + j * p.query_stride + d);
          UNROLL for (int i = 0; i < 4; ++i) sums[j] = fmaf(four.v[i], elements[i], sums[j]);
        }
      }
      for (; d < dim; ++d) {
        const float element = number_at<kind>(k, d * kBlockTokens + token);
        UNROLL for (int j = 0; j < most; ++j) sums[j] = fmaf(x[j * p.query_stride + d], element, sums[j]);
      }
      UNROLL for (int j = 0; j < most; ++j) {
        if (first + j < t.queries) scores[(first + j) * kScoreStride + at] = sums[j];
      }
    }
  }
}

}  // namespace
}  // namespace infeng_cuda
