// Mixtures of experts. route chooses the experts of each row and sorts copies of the rows by expert:
//   chosen = the top_k largest logits, descending; of equal logits the lowest expert first
//   weight = exp(logit - largest) / sum;  sum: over the chosen ones, in order, or over all experts in 16 lanes
// combine: cur[n] = fma(weight[i], x[place[i]][n], cur[n]) for i < top_k ascending, from +0, then cur[n] =
// fma(sigmoid(gate), shared[n], cur[n]), then the epilogues.
// The host calls a LINEAR kernel for each expert with rows in between.
// SPDX-License-Identifier: Apache-2.0
#ifndef INFENG_OPS_EXPERTS_H
#define INFENG_OPS_EXPERTS_H

#include <infeng/ops/epilogue.h>

namespace infeng {
namespace {

// Phases: choose each row's experts and weights; sort all copies; copy the rows.
template <Vector V>
struct Route {
  static constexpr uint32_t kOp = INFENG_OP_ROUTE;
  static constexpr uint32_t kFuses = 0;

  static int32_t accepts(const infeng_problem* p) {
    return p->op == kOp && epilogues_within(*p, kFuses) && p->experts <= INFENG_MOST_EXPERTS && p->top_k >= 1 &&
           p->top_k <= INFENG_MOST_CHOSEN && p->top_k <= p->experts;
  }

  static int32_t phases(const infeng_args*) { return 3; }

  static int64_t tiles(const infeng_args* args, int32_t phase) {
    if (args->rows == 0) return 0;
    return phase == 1 ? 1 : args->rows;
  }

  static infeng_status run(const infeng_args* common, int32_t phase, int64_t first, int64_t last,
                           infeng_worker* worker) {
    const auto& args = *(const infeng_route_args*)common;
    const int64_t experts = args.logits.shape[1];
    if (args.top_k < 1 || args.top_k > INFENG_MOST_CHOSEN || args.top_k > experts || experts > INFENG_MOST_EXPERTS)
      return fail(worker, INFENG_INVALID_ARGUMENT, "route: a row goes to 1 to 64 of at most 4096 experts");
    for (int64_t tile = first; tile < last; ++tile) {
      if (phase == 1)
        sort(args, experts);
      else if (phase == 2)
        copy(args, tile);
      else
        route(args, row_of<float>(args.logits, tile), experts, args.experts + tile * args.top_k,
              args.weights + tile * args.top_k);
    }
    return INFENG_OK;
  }

 private:
  // The chosen experts differ even if logits are NaN.
  static void choose(const float* logits, int64_t experts, int32_t top_k, int32_t* chosen) {
    uint64_t taken[INFENG_MOST_EXPERTS / 64];
    for (int64_t i = 0; i < ceil_div(experts, 64); ++i) taken[i] = 0;
    for (int32_t i = 0; i < top_k; ++i) {
      int64_t best = -1;
      for (int64_t e = 0; e < experts; ++e) {
        if (taken[e / 64] >> (e % 64) & 1) continue;
        if (best < 0 || logits[e] > logits[best]) best = e;
      }
      taken[best / 64] |= uint64_t(1) << (best % 64);
      chosen[i] = int32_t(best);
    }
  }

  static void route(const infeng_route_args& args, const float* logits, int64_t experts, int32_t* chosen,
                    float* weights) {
    choose(logits, experts, args.top_k, chosen);
    const auto largest = V::set(logits[chosen[0]]);
    alignas(64) float e[INFENG_MOST_CHOSEN];
    for (int32_t i = 0; i < args.top_k; ++i) e[i] = logits[chosen[i]];
    for (int32_t i = 0; i < args.top_k; i += kLanes)
      V::store(e + i, exp_of_negative<V>(V::sub(V::load(e + i, args.top_k - i), largest)));
    float sum = 0.0f;
    if (args.share == INFENG_SHARE_ALL) {
      sum = sum_of_all(logits, experts, largest);
    } else {
      for (int32_t i = 0; i < args.top_k; ++i) sum = sum + e[i];
    }
    for (int32_t i = 0; i < args.top_k; ++i) weights[i] = e[i] / sum;
  }

  static float sum_of_all(const float* logits, int64_t experts, typename V::F largest) {
    auto lanes = V::zero();
    for (int64_t c = 0; c < experts; c += kLanes) {
      const int count = int(min_of(kLanes, experts - c));
      alignas(64) float e[kLanes];
      V::store(e, exp_of_negative<V>(V::sub(V::load(logits + c, count), largest)));
      lanes = V::add(lanes, V::load(e, count));
    }
    return V::tree(lanes);
  }

  // Counts the copies of each expert, then assigns places by expert and row; meanwhile begin[e] is the next place of e.
  static void sort(const infeng_route_args& args, int64_t experts) {
    const int64_t copies = args.common.rows * args.top_k;
    for (int64_t e = 0; e <= experts; ++e) args.begin[e] = 0;
    for (int64_t i = 0; i < copies; ++i) ++args.begin[args.experts[i] + 1];
    for (int64_t e = 0; e < experts; ++e) args.begin[e + 1] += args.begin[e];
    for (int64_t i = 0; i < copies; ++i) args.places[i] = args.begin[args.experts[i]]++;
    for (int64_t e = experts; e > 0; --e) args.begin[e] = args.begin[e - 1];
    args.begin[0] = 0;
  }

  static void copy(const infeng_route_args& args, int64_t row) {
    const infeng_activation &in = *args.in, &out = *args.out;
    for (int32_t i = 0; i < args.top_k; ++i) {
      const int64_t place = args.places[row * args.top_k + i];
      if (in.x.data) copy_row<float>(in.x, row, out.x, place);
      if (!in.q.data) continue;
      copy_row<int8_t>(in.q, row, out.q, place);
      copy_row<float>(in.scale, row, out.scale, place);
      copy_row<int32_t>(in.sum, row, out.sum, place);
    }
  }

  template <class T>
  static void copy_row(const infeng_tensor& from, int64_t row, const infeng_tensor& to, int64_t place) {
    __builtin_memcpy(row_of<T>(to, place), row_of<T>(from, row), size_t(from.shape[1]) * sizeof(T));
  }
};

// A tile is one row.
template <Vector V>
struct Combine {
  static constexpr uint32_t kOp = INFENG_OP_COMBINE;
  static constexpr uint32_t kFuses =
      INFENG_EPILOGUE_BIT(INFENG_EPILOGUE_BIAS) | INFENG_EPILOGUE_BIT(INFENG_EPILOGUE_ROW_SCALE) |
      INFENG_EPILOGUE_BIT(INFENG_EPILOGUE_RESIDUAL) | INFENG_EPILOGUE_BIT(INFENG_EPILOGUE_QUANTIZE) |
      INFENG_EPILOGUE_BIT(INFENG_EPILOGUE_SCALE) | INFENG_EPILOGUE_BIT(INFENG_EPILOGUE_SOFTCAP);

  static int32_t accepts(const infeng_problem* p) {
    return p->op == kOp && epilogues_within(*p, kFuses) && p->top_k >= 1 && p->top_k <= INFENG_MOST_CHOSEN;
  }

  static int64_t tiles(const infeng_args* args, int32_t) { return args->rows; }

  static infeng_status run(const infeng_args* common, int32_t, int64_t first, int64_t last, infeng_worker* worker) {
    const auto& args = *(const infeng_combine_args*)common;
    if (!epilogues_within(*common, kFuses))
      return fail(worker, INFENG_UNIMPLEMENTED, "epilogue list holds a kind that this kernel does not fuse");
    const int64_t columns = args.x.shape[1];
    for (int64_t row = first; row < last; ++row) {
      const float* weights = args.weights + row * args.top_k;
      const int32_t* places = args.places + row * args.top_k;
      const float* shared = args.shared.data ? row_of<float>(args.shared, row) : nullptr;
      const auto weight = args.gate.data ? sigmoid(row_of<float>(args.gate, row)[0]) : V::set(1.0f);
      for (int64_t column = 0; column < columns; column += kGroup) {
        const int64_t width = min_of(kGroup, columns - column);
        alignas(64) float cur[kGroup];
        for (int64_t c = 0; c < width; c += kLanes) {
          auto sum = V::zero();
          for (int32_t i = 0; i < args.top_k; ++i) {
            const float* x = row_of<float>(args.x, places[i]) + column + c;
            sum = V::fma(V::set(weights[i]), V::load(x, int(width - c)), sum);
          }
          if (shared) sum = V::fma(weight, V::load(shared + column + c, int(width - c)), sum);
          V::store(cur + c, sum);
        }
        finish_row<V>(*common, 0, args.out, row, column, round_up(width, kLanes), cur);
      }
    }
    return INFENG_OK;
  }

 private:
  static typename V::F sigmoid(float x) {
    return V::div(V::set(1.0f), V::add(V::set(1.0f), exp<V>(V::sub(V::zero(), V::set(x)))));
  }
};

}  // namespace
}  // namespace infeng
#endif  // INFENG_OPS_EXPERTS_H
