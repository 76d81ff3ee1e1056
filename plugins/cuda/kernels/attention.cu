// ATTENTION: what follows the scores of a split, and the kernels.
#include "attention.cuh"

namespace infeng_cuda {
namespace {

template <Kind kind>
constexpr float kMostShare = kind == kInt4Lines ? 127.0f : 255.0f;

// Products become scores, which become weights of V: exp(s - m), times the scale of V, as floats or as shares.
template <Kind k, Kind v>
DEV void weigh(const Attention& p, const Task& t, const Threads& th, Board& b, float* scores, uint8_t* shares) {
  for (int i = th.own; i < t.queries * kSplit; i += th.count) {
    const int query = i / kSplit, at = i % kSplit;
    float score = float_of_bits(kNone);
    if (at >= b.low[query] && at < b.high[query]) {
      const float product = scores[query * kScoreStride + at];
      if (kIsInteger<k>)
        score = product * ((b.query_scale[query] * b.k_scale[at]) * p.scale);
      else
        score = product * (kHasScale<k> ? b.k_scale[at] * p.scale : p.scale);
      if (p.softcap != 0.0f) score = p.softcap * tanh_of(score / p.softcap);
      if (p.slopes != nullptr) {
        const int behind = t.start + at - (t.position + query / t.heads);
        score = fmaf(p.slopes[t.first_head + query % t.heads], static_cast<float>(behind), score);
      }
    }
    scores[query * kScoreStride + at] = score;
  }
  sync_block();
  // Half a warp takes a query, and a lane of it the positions of one of the 16 lanes of a sum.
  const int half = th.lane / 16, own = th.lane % 16;
  for (int pair = 2 * th.warp; pair < t.queries; pair += 2 * th.warps) {
    const int query = min_of(pair + half, t.queries - 1);
    const float* const row = scores + query * kScoreStride + own;
    float largest = float_of_bits(kNone);
    UNROLL for (int j = 0; j < 16; ++j) largest = row[16 * j] > largest ? row[16 * j] : largest;
    UNROLL for (int mask = 8; mask > 0; mask /= 2) {
      const float other = shuffle_xor(largest, mask);
      largest = other > largest ? other : largest;
    }
    if (own == 0) b.largest[query] = largest;
  }
  sync_block();
  for (int i = th.own; i < t.queries * kSplit; i += th.count) {
    float& score = scores[i / kSplit * kScoreStride + i % kSplit];
    score = exp_of(score - b.largest[i / kSplit]);
  }
  sync_block();
  for (int pair = 2 * th.warp; pair < t.queries; pair += 2 * th.warps) {
    const bool is_real = pair + half < t.queries;
    const int query = is_real ? pair + half : pair;
    float* const row = scores + query * kScoreStride;
    float weights[16], sum = 0.0f, largest = 0.0f;
    UNROLL for (int j = 0; j < 16; ++j) {
      const int at = 16 * j + own;
      weights[j] = row[at];
      sum = sum + weights[j];
      if (kHasScale<v>) weights[j] = weights[j] * b.v_scale[at];
      largest = fabsf(weights[j]) > largest ? fabsf(weights[j]) : largest;
    }
    UNROLL for (int mask = 8; mask > 0; mask /= 2) {
      sum = sum + shuffle_xor(sum, mask);
      const float other = shuffle_xor(largest, mask);
      largest = other > largest ? other : largest;
    }
    if (!is_real) continue;
    if (own == 0) b.sum[query] = sum;
    if constexpr (kIsLines<v>) {
      constexpr float kMost = kMostShare<v>;
      const float inverse = largest < 0x1p-100f ? 0.0f : kMost / largest;
      UNROLL for (int j = 0; j < 16; ++j) {
        const int share = static_cast<int>(rintf(clamped(weights[j] * inverse, -kMost, kMost)));
        shares[query * kShareStride + 16 * j + own] = static_cast<uint8_t>(share);
      }
      if (own == 0) b.unit[query] = largest / kMost;
    } else if (kHasScale<v>) {
      UNROLL for (int j = 0; j < 16; ++j) row[16 * j + own] = weights[j];
    }
  }
  sync_block();
}

// Begins to copy V of a chunk of positions; odd chunks lie behind even ones.
DEV void copy_chunk(const Attention& p, const Threads& th, const Board& b, uint8_t* values, int chunk) {
  const int blocks = p.chunk_tokens / kBlockTokens, first = chunk * blocks, bytes = p.block_v_bytes;
  for (int i = th.warp; i < blocks; i += th.warps) {
    const uint8_t* const slab = first + i < kSplitBlocks ? b.slabs[first + i] : nullptr;
    if (slab == nullptr) continue;
    uint8_t* const to = values + (chunk % 2 * blocks + i) * bytes;
    for (int at = 16 * th.lane; at < bytes; at += 16 * 32) copy_async(to + at, slab + p.cache.v_offset + at);
  }
  end_copies();
}

// o[d] = sum of weight[t] V[t][d], t ascending: a thread has an element of V and `most` queries.
template <Kind kind, int most>
DEV void add_tokens(const Attention& p, const Task& t, const Threads& th, const Board& b, const float* scores,
                    uint8_t* values, float* results) {
  const int dim = p.cache.v_dim, d = th.own % dim, first = th.own / dim * most, chunk = p.chunk_tokens;
  const int queries = min_of(t.queries - first, most);  // none: not above 0
  // All of them see these positions.
  const int low = queries > 0 ? b.low[first + queries - 1] : 0, high = queries > 0 ? b.high[first] : 0;
  const float* const weights = scores + first * kScoreStride;
  float sums[most] = {};
  for (int c = t.begin / chunk; c * chunk < t.end; ++c) {
    wait_copies<1>();
    sync_block();
    const uint8_t* const v = values + c % 2 * (chunk / kBlockTokens) * p.block_v_bytes;
    const int begin = max_of(c * chunk, t.begin & -4), end = queries > 0 ? min_of((c + 1) * chunk, t.end) : 0;
    for (int at = begin; at < end; at += 4) {
      float elements[4];
      UNROLL for (int i = 0; i < 4; ++i) elements[i] = value_at<kind>(v, at + i - c * chunk, d, dim);
      if (at >= low && at + 4 <= high) {
        UNROLL for (int j = 0; j < most; ++j) {
          const auto four = *reinterpret_cast<const Several<float, 4>*>(weights + j * kScoreStride + at);
          UNROLL for (int i = 0; i < 4; ++i) sums[j] = fmaf(four.v[i], elements[i], sums[j]);
        }
        continue;
      }
      UNROLL for (int j = 0; j < most; ++j) {
        UNROLL for (int i = 0; i < 4; ++i) {
          const bool is_seen = at + i >= b.low[first + j] && at + i < b.high[first + j];
          if (is_seen) sums[j] = fmaf(weights[j * kScoreStride + at + i], elements[i], sums[j]);
        }
      }
    }
    sync_block();
    copy_chunk(p, th, b, values, c + 2);
  }
  UNROLL for (int j = 0; j < most; ++j) {
    if (j < queries) results[(first + j) * p.query_stride + d] = sums[j];
  }
}

// The same in integers: o[d] = (sum of share[t] V[t][d]) unit. A warp takes 16 elements of V and all queries.
template <Kind kind, int tiles>
DEV void add_shares(const Attention& p, const Task& t, const Threads& th, const Board& b, const uint8_t* shares,
                    float* results) {
  constexpr int kSteps = 4;  // of 32 positions, whose V is read at a time
  const int g = th.lane / 4, l = th.lane % 4, dim = p.cache.v_dim;
  const auto* const words = reinterpret_cast<const unsigned*>(shares);
  for (int c = th.warp; c < (dim + 15) / 16; c += th.warps) {
    int sums[tiles][2][4] = {};
    for (int first = 0; first < t.end; first += 32 * kSteps) {
      unsigned elements[kSteps][2][2] = {};
      UNROLL for (int i = 0; i < kSteps; ++i) {
        UNROLL for (int half = 0; half < 2; ++half) {
          const uint8_t* const slab = b.slabs[first / kBlockTokens + 2 * i + half];
          unsigned both[2] = {0, 0};
          if (slab != nullptr) value_words<kind>(slab + p.cache.v_offset, l, c, g, dim, both);
          UNROLL for (int n = 0; n < 2; ++n) elements[i][n][half] = both[n];
        }
      }
      UNROLL for (int i = 0; i < kSteps; ++i) {
        UNROLL for (int tile = 0; tile < tiles; ++tile) {
          if (16 * tile >= t.queries) continue;
          unsigned a[4];
          read_fragment(words, kShareStride / 4, tile, first / 4 + 8 * i + l, g, a);
          UNROLL for (int n = 0; n < 2; ++n) {
            if (kind == kInt8Lines)
              mma_u8(sums[tile][n], a, elements[i][n]);
            else
              mma_s8(sums[tile][n], a, elements[i][n]);
          }
        }
      }
    }
    UNROLL for (int tile = 0; tile < tiles; ++tile) {
      UNROLL for (int i = 0; i < 8; ++i) {
        const int query = 16 * tile + 8 * (i / 2 % 2) + g, d = 16 * c + 8 * (i / 4) + 2 * l + i % 2;
        if (query >= t.queries || d >= dim) continue;
        const float sum = static_cast<float>(sums[tile][i / 4][i % 4] >> kExtraBits<kind>);
        results[query * p.query_stride + d] = sum * b.unit[query];
      }
    }
  }
}

DEV float sink_of(const Attention& p, int head) { return p.sinks != nullptr ? p.sinks[head] : float_of_bits(kNone); }

// Writes a query's result: as it is for spans of several splits, else as attention's.
DEV void finish_query(const Attention& p, const Task& t, const Threads& th, const Board& b, int query, float* result) {
  const int dim = p.cache.v_dim, row = t.row + query / t.heads, head = t.first_head + query % t.heads;
  const float m = b.largest[query], l = b.sum[query];
  if (t.span.splits > 1) {
    float* const part = part_of(p, t.span, row, head, t.split);
    for (int d = th.lane; d < dim; d += 32) part[d] = result[d];
    if (th.lane == 0) part[dim] = m;
    if (th.lane == 1) part[dim + 1] = l;
    return;
  }
  const float sink = sink_of(p, head), largest = m > sink ? m : sink, weight = exp_of(m - largest);
  float sum = fmaf(l, weight, 0.0f);
  if (sink > float_of_bits(kNone)) sum = sum + exp_of(sink - largest);
  for (int d = th.lane; d < dim; d += 32) result[d] = fmaf(result[d], weight, 0.0f) / sum;
  if (p.rotated != 0) hadamard(result, dim, th.lane);
  float* const out = p.out + (t.span.row + row) * p.out_row + static_cast<int64_t>(head) * dim;
  for (int d = th.lane; d < dim; d += 32) out[d] = result[d];
}

template <Kind k, Kind v, bool rotated, bool many>
DEV void attend(const Attention& p) {
  SHARED Board b;
  DYNAMIC_SHARED(float, memory);
  const Threads th = threads_of_block();
  const Task t = task_of(p);
  if (t.begin >= t.end) return;  // all of the block
  float* const scores = memory + p.scores;
  auto* const rounded = reinterpret_cast<unsigned*>(memory + p.rounded);
  auto* const values = reinterpret_cast<uint8_t*>(memory + p.values);
  find_slabs(p, t, th, b);
  sync_block();
  prefetch_blocks(th, b, p.cache.k_offset, p.block_k_bytes);
  if (kIsLines<v>) {
    prefetch_blocks(th, b, p.cache.v_offset, p.block_v_bytes);
  } else {
    copy_chunk(p, th, b, values, t.begin / p.chunk_tokens);
    copy_chunk(p, th, b, values, t.begin / p.chunk_tokens + 1);
  }
  read_scales<k, v>(p, t, th, b);
  read_queries<k, rotated>(p, t, th, b, memory, rounded);
  sync_block();
  if constexpr (kIsInteger<k>)
    multiply_integers<k, kQueryTiles<many>>(p, t, th, b, rounded, scores);
  else
    multiply_floats<k, kThreadQueries<many>>(p, t, th, b, memory, scores);
  sync_block();
  weigh<k, v>(p, t, th, b, scores, values);
  if constexpr (kIsLines<v>)
    add_shares<v, kQueryTiles<many>>(p, t, th, b, values, memory);
  else
    add_tokens<v, kThreadQueries<many>>(p, t, th, b, scores, values, memory);
  sync_block();
  for (int i = th.warp; i < t.queries; i += th.warps) finish_query(p, t, th, b, i, memory + i * p.query_stride);
}

}  // namespace

#define INFENG_ATTENTION(name, number, k, v, rotated)                            \
  KERNEL_OF(attention_##name##_few, Attention, kMostAttentionThreads, 1) {       \
    attend<k, v, rotated, false>(p);                                             \
  }                                                                              \
  KERNEL_OF(attention_##name##_many, Attention, kMostAttentionThreads, 1) {      \
    attend<k, v, rotated, true>(p);                                              \
  }
INFENG_CACHE_FORMATS(INFENG_ATTENTION)

// Combines the splits of a row and head, in their order: out = (sum of o_j w_j) / (sum of l_j w_j), w_j = exp(m_j - M).
KERNEL_OF(attention_combine, Attention, kMostAttentionThreads, 1) {
  SHARED float result[kMostHead];
  const Threads th = threads_of_block();
  const int number = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y), dim = p.cache.v_dim;
  const Span& span = p.spans[span_at<&Span::first_row>(p.spans, p.span_count, number)];
  if (span.splits == 1) return;  // all of the block
  const int row = number - span.first_row, position = span.pos0 + row;
  const int start = begin_of(p, position - row % p.group_rows) / kSplit;  // of the row's group
  const int begin = begin_of(p, position) / kSplit - start, end = (end_of(p, span, position) - 1) / kSplit + 1 - start;
  const float* const parts = part_of(p, span, row, head, 0);
  const float sink = sink_of(p, head);
  float largest = sink;
  for (int j = begin + th.lane; j < end; j += 32) {
    const float m = parts[j * p.part_stride + dim];
    largest = m > largest ? m : largest;
  }
  largest = largest_of_warp(largest);
  float sum = 0.0f, cur = 0.0f;
  for (int first = begin; first < end; first += 32) {
    const int j = first + th.lane, count = min_of(end - first, 32);
    const float weight = j < end ? exp_of(parts[j * p.part_stride + dim] - largest) : 0.0f;
    const float l = j < end ? parts[j * p.part_stride + dim + 1] : 0.0f;
    for (int i = 0; i < count; ++i) {
      const float w = shuffle(weight, i);
      sum = fmaf(shuffle(l, i), w, sum);
      if (th.own < dim) cur = fmaf(parts[(first + i) * p.part_stride + th.own], w, cur);
    }
  }
  if (sink > float_of_bits(kNone)) sum = sum + exp_of(sink - largest);
  cur = cur / sum;
  if (th.own < dim) result[th.own] = cur;
  sync_block();
  if (p.rotated != 0) {
    if (th.warp == 0) hadamard(result, dim, th.lane);
    sync_block();
  }
  float* const out = p.out + (span.row + row) * p.out_row + static_cast<int64_t>(head) * dim;
  if (th.own < dim) out[th.own] = result[th.own];
}

}  // namespace infeng_cuda
