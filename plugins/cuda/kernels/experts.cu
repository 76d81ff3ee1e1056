// route: the experts of each row, and copies of the rows sorted by expert; combine: the weighted sum of their results.
#include "experts.h"

#include "quantize.cuh"
#include "steps.cuh"

namespace infeng_cuda {
namespace {

// Numbers in the order of logits; 0 and -0 are equal.
DEV unsigned rank_of(float logit) {
  const unsigned bits = logit == 0.0f ? 0u : bits_of_float(logit);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

// The experts of a row that a warp has chosen: lane i holds those of places i and i + 32.
struct Choice {
  int expert[2];
  float weight[2];
};

// Takes top_k times the best of all that come after the one taken before.
DEV void choose(const Route& p, const float* logits, Choice& choice) {
  unsigned rank = 0xffffffffu;
  int expert = -1;
  for (int i = 0; i < p.top_k; ++i) {
    unsigned best = 0;
    int at = -1;
    for (int e = lane_number(); e < p.experts; e += 32) {
      const unsigned own = rank_of(logits[e]);
      if (own > rank || (own == rank && e <= expert) || (at >= 0 && own <= best)) continue;
      best = own;
      at = e;
    }
    rank = warp_max(best);
    expert = static_cast<int>(~warp_max(at >= 0 && best == rank ? ~static_cast<unsigned>(at) : 0u));
    if (lane_number() == i) choice.expert[0] = expert;
    if (lane_number() + 32 == i) choice.expert[1] = expert;
  }
}

DEV void share(const Route& p, const float* logits, Choice& choice) {
  const float largest = logits[shuffle(choice.expert[0], 0)];
  UNROLL for (int j = 0; j < 2; ++j) {
    if (lane_number() + 32 * j < p.top_k) choice.weight[j] = exp_of(logits[choice.expert[j]] - largest);
  }
  float sum = 0.0f;
  if (p.of_chosen) {
    for (int i = 0; i < p.top_k; ++i) sum = sum + shuffle(i < 32 ? choice.weight[0] : choice.weight[1], i % 32);
  } else {
    for (int e = lane_number() & 15; e < p.experts; e += 16) sum = sum + exp_of(logits[e] - largest);
    UNROLL for (int mask = 8; mask > 0; mask /= 2) sum = sum + shuffle_xor(sum, mask);
  }
  UNROLL for (int j = 0; j < 2; ++j) choice.weight[j] = choice.weight[j] / sum;
}

// Chooses for a row, by a warp, and writes what it chose.
DEV void choose_row(const Route& p, int row) {
  const float* const logits = p.logits + row * p.logits_stride;
  Choice choice{};
  choose(p, logits, choice);
  share(p, logits, choice);
  UNROLL for (int j = 0; j < 2; ++j) {
    const int i = lane_number() + 32 * j;
    if (i >= p.top_k) continue;
    p.chosen[row * p.top_k + i] = choice.expert[j];
    p.weights[row * p.top_k + i] = choice.weight[j];
  }
}

// Copies a row's arrays to its places, 16 or 4 bytes at a time.
template <class T>
DEV void copy_array(const Copied& array, int row, const int* places, int top_k) {
  const T* const from = reinterpret_cast<const T*>(array.from + row * array.from_stride);
  for (int i = thread_number(); i < array.bytes / static_cast<int>(sizeof(T)); i += thread_count()) {
    const T value = from[i];
    for (int j = 0; j < top_k; ++j) reinterpret_cast<T*>(array.to + places[j] * array.to_stride)[i] = value;
  }
}

DEV void copy_row(const Route& p, int row, const int* places) {
  for (int i = 0; i < p.count; ++i) {
    const Copied& array = p.arrays[i];
    const auto all = reinterpret_cast<uintptr_t>(array.from) | reinterpret_cast<uintptr_t>(array.to) |
                     static_cast<uintptr_t>(array.from_stride | array.to_stride | array.bytes);
    if ((all & 15u) == 0) {
      copy_array<Quad>(array, row, places, p.top_k);
    } else {
      copy_array<unsigned>(array, row, places, p.top_k);
    }
  }
}

// The place of copy (row, i) is the number of copies of lower experts and of those of its expert in earlier rows.
DEV int count_before(const int* chosen, int copies, int own) {
  const int expert = chosen[own];
  int count = 0;
  for (int j = lane_number(); j < copies; j += 32) {
    count += chosen[j] < expert || (chosen[j] == expert && j < own) ? 1 : 0;
  }
  UNROLL for (int mask = 16; mask > 0; mask /= 2) count += shuffle_xor(count, mask);
  return count;
}

// The number of the block's threads' values before a thread's own, and of all.
struct Prefix {
  int before, all;
};
DEV Prefix prefix_of(int value) {
  SHARED int of_warps[32];
  int sum = value;  // of this lane and those before it
  UNROLL for (int step = 1; step < 32; step *= 2) {
    const int other = shuffle(sum, lane_number() - step);
    if (lane_number() >= step) sum += other;
  }
  sync_block();
  if (lane_number() == 31) of_warps[warp_number()] = sum;
  sync_block();
  Prefix prefix{sum - value, 0};
  for (int warp = 0; warp < thread_count() / 32; ++warp) {
    if (warp < warp_number()) prefix.before += of_warps[warp];
    prefix.all += of_warps[warp];
  }
  return prefix;
}

}  // namespace

// All of route for few rows: each block chooses for all of them, and copies one.
KERNEL_OF(route_few, Route, kFewRouted * 32, 1) {
  SHARED int chosen[kFewRouted * kMostChosen];
  SHARED int places[kMostChosen];
  const int own = static_cast<int>(blockIdx.x), copies = p.rows * p.top_k, warps = thread_count() / 32;
  if (warp_number() < p.rows) {
    const float* const logits = p.logits + warp_number() * p.logits_stride;
    Choice choice{};
    choose(p, logits, choice);
    if (warp_number() == own) share(p, logits, choice);
    UNROLL for (int j = 0; j < 2; ++j) {
      const int i = lane_number() + 32 * j;
      if (i >= p.top_k) continue;
      chosen[warp_number() * p.top_k + i] = choice.expert[j];
      if (warp_number() != own) continue;
      p.chosen[own * p.top_k + i] = choice.expert[j];
      p.weights[own * p.top_k + i] = choice.weight[j];
    }
  }
  sync_block();
  for (int i = warp_number(); i < p.top_k; i += warps) {
    const int place = count_before(chosen, copies, own * p.top_k + i);
    if (lane_number() != 0) continue;
    places[i] = place;
    p.places[own * p.top_k + i] = place;
  }
  for (int e = own * thread_count() + thread_number(); e <= p.experts; e += p.rows * thread_count()) {
    int count = 0;
    for (int j = 0; j < copies; ++j) count += chosen[j] < e ? 1 : 0;
    p.begin[e] = count;
  }
  sync_block();
  copy_row(p, own, places);
}

// Of many rows: first the choice, a warp for each row.
KERNEL_OF(route_choose, Route, kRouteThreads, 2) {
  const int row = static_cast<int>(blockIdx.x) * (kRouteThreads / 32) + warp_number();
  if (row < p.rows) choose_row(p, row);
}

// Then the places of an expert's copies, a block for each expert and one for the end.
KERNEL_OF(route_sort, Route, kRouteThreads, 2) {
  const int expert = static_cast<int>(blockIdx.x), copies = p.rows * p.top_k;
  const int each = (copies + kRouteThreads - 1) / kRouteThreads, begin = thread_number() * each;
  const int end = copies - begin < each ? copies : begin + each;
  int lower = 0, equal = 0;
  for (int j = begin; j < end; ++j) {
    lower += p.chosen[j] < expert ? 1 : 0;
    equal += p.chosen[j] == expert ? 1 : 0;
  }
  const int first = prefix_of(lower).all;
  int place = first + prefix_of(equal).before;
  if (thread_number() == 0) p.begin[expert] = first;
  for (int j = begin; j < end; ++j) {
    if (p.chosen[j] == expert) p.places[j] = place++;
  }
}

// Then the copies, a block for each row.
KERNEL_OF(route_copy, Route, kRouteThreads, 2) {
  SHARED int places[kMostChosen];
  const int row = static_cast<int>(blockIdx.x);
  if (thread_number() < p.top_k) places[thread_number()] = p.places[row * p.top_k + thread_number()];
  sync_block();
  copy_row(p, row, places);
}

// A thread has a column. Those behind the end of x, up to a whole panel, are 0 before the steps.
KERNEL_OF(combine, Combine, kRouteThreads, 2) {
  const int64_t row = blockIdx.x;
  const int column = static_cast<int>(blockIdx.y) * kRouteThreads + thread_number();
  if (column >= p.out.columns) return;
  float cur = 0.0f;
  if (column < p.x.columns) {
    const float* const weights = p.weights + row * p.top_k;
    const int32_t* const places = p.places + row * p.top_k;
    for (int i = 0; i < p.top_k; ++i) cur = fmaf(weights[i], p.x.data[places[i] * p.x.stride + column], cur);
    if (p.shared.data != nullptr) {
      const float weight = p.gate.data != nullptr ? sigmoid_of(p.gate.data[row * p.gate.stride]) : 1.0f;
      cur = fmaf(weight, p.shared.data[row * p.shared.stride + column], cur);
    }
  }
  p.out.data[row * p.out.stride + column] = apply(p.steps, 0, p.steps.count, row, column, cur);
}

}  // namespace infeng_cuda
