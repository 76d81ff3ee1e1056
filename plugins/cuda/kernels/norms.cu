// rmsnorm and layernorm: a block is a row, or a head of one, which lies in shared memory.
#include "norms.h"

#include "quantize.cuh"

namespace infeng_cuda {
namespace {

// A sum over the row in 16 virtual lanes, which 16 threads add in order; all lanes of the warp get it. The zeros behind
// the row change no sum, since none is -0.
template <class Add>
DEV float sum_of(const float* row, int padded, Add add) {
  const float* const own = row + (lane_number() & 15);
  float sum = 0.0f, now[16], next[16] = {};
  UNROLL for (int j = 0; j < 16; ++j) now[j] = own[16 * j];
  for (int i = kSumColumns; i <= padded; i += kSumColumns) {
    UNROLL for (int j = 0; j < 16; ++j) {
      if (i < padded) next[j] = own[i + 16 * j];
    }
    UNROLL for (int j = 0; j < 16; ++j) {
      sum = add(now[j], sum);
      now[j] = next[j];
    }
  }
  UNROLL for (int mask = 8; mask > 0; mask /= 2) sum = sum + shuffle_xor(sum, mask);
  return sum;
}

template <bool is_layer>
DEV void normalize(const Norm& p) {
  DYNAMIC_SHARED(float, row);
  SHARED float found[2];  // the mean, and the inverse deviation
  const int number = static_cast<int>(blockIdx.x), m = number / p.heads, head = number % p.heads, k = p.k;
  const int padded = (k + kSumColumns - 1) / kSumColumns * kSumColumns, step = 4 * thread_count();
  const int own = 4 * thread_number();
  const float* x = p.x + (p.row_index != nullptr ? p.row_index[m] : m) * p.x_stride + head * p.x_head;
  const auto at = [&](int column) -> Quad& { return *reinterpret_cast<Quad*>(row + column); };
  for (int column = own; column < padded; column += step) at(column) = read4(x, column, k);
  Quad weight{}, bias{};  // of the thread's first columns, read before they are needed
  if (p.weight != nullptr) weight = read4(p.weight, own, k);
  if (is_layer) bias = read4(p.bias, own, k);
  sync_block();

  if (is_layer) {
    if (warp_number() == 0) {
      const float sum = sum_of(row, padded, [](float a, float s) { return s + a; });
      if (lane_number() == 0) found[0] = sum / static_cast<float>(k);
    }
    sync_block();
    for (int column = own; column < padded; column += step) {
      Quad& quad = at(column);
      UNROLL for (int i = 0; i < 4; ++i) quad.v[i] = column + i < k ? quad.v[i] - found[0] : 0.0f;
    }
    sync_block();
  }
  if (warp_number() == 0) {
    const float sum = sum_of(row, padded, [](float a, float s) { return fmaf(a, a, s); });
    if (lane_number() == 0) found[1] = 1.0f / sqrtf(sum / static_cast<float>(k) + p.eps);
  }
  sync_block();

  const float r = found[1];
  float* out = p.out == nullptr ? nullptr : p.out + m * p.out_stride + head * p.out_head;
  for (int column = own; column < k; column += step) {
    if (column != own && p.weight != nullptr) weight = read4(p.weight, column, k);
    if (column != own && is_layer) bias = read4(p.bias, column, k);
    Quad y = at(column);
    UNROLL for (int i = 0; i < 4; ++i) {
      y.v[i] = y.v[i] * r;
      if (is_layer) {
        y.v[i] = fmaf(y.v[i], weight.v[i], bias.v[i]);
      } else if (p.weight != nullptr) {
        y.v[i] = y.v[i] * (p.offset != 0.0f ? p.offset + weight.v[i] : weight.v[i]);
      }
    }
    if (out != nullptr) write4(out, column, k, y);
    at(column) = y;
  }
  if (p.count == 0) return;
  sync_block();
  for (int i = 0; i < p.count; ++i) {
    round_row(p.roundings[i], m, 0, k, at);
  }
}

}  // namespace

KERNEL_OF(rmsnorm, Norm, kMostRoundThreads, 1) { normalize<false>(p); }
KERNEL_OF(layernorm, Norm, kMostRoundThreads, 1) { normalize<true>(p); }

}  // namespace infeng_cuda
