// route and combine.
#include "../kernels/experts.h"

#include <algorithm>

#include "flatten.h"

namespace infeng_cuda {
namespace {

static_assert(kMostChosen == INFENG_MOST_CHOSEN);

void add_array(const infeng_tensor& from, const infeng_tensor& to, Route& p) {
  const int64_t size = from.dtype == INFENG_I8 ? 1 : 4;
  p.arrays[p.count++] = {static_cast<const uint8_t*>(from.data), static_cast<uint8_t*>(to.data), from.strides[0] * size,
                         to.strides[0] * size, static_cast<int32_t>(from.shape[1] * size)};
}

infeng_status run_route(const infeng_args* common, int32_t, int64_t, int64_t, infeng_worker* worker) {
  static Entry few{"route_few"}, choose{"route_choose"}, sort{"route_sort"}, copy{"route_copy"};
  const auto& args = *reinterpret_cast<const infeng_route_args*>(common);
  const int64_t experts = args.logits.shape[1], rows = common->rows;
  if (args.top_k < 1 || args.top_k > kMostChosen || args.top_k > experts || experts > INFENG_MOST_EXPERTS) {
    return fail(worker, INFENG_INVALID_ARGUMENT, "route: a row goes to 1 to 64 of at most 4096 experts");
  }
  if (rows == 0) return INFENG_OK;
  Route p;
  p.logits = static_cast<const float*>(args.logits.data);
  p.logits_stride = args.logits.strides[0];
  p.chosen = args.experts;
  p.weights = args.weights;
  p.places = args.places;
  p.begin = args.begin;
  p.rows = static_cast<int32_t>(rows);
  p.experts = static_cast<int32_t>(experts);
  p.top_k = args.top_k;
  p.of_chosen = args.share == INFENG_SHARE_CHOSEN;
  if (args.in->x.data != nullptr) add_array(args.in->x, args.out->x, p);
  if (args.in->q.data != nullptr) {
    add_array(args.in->q, args.out->q, p);
    add_array(args.in->scale, args.out->scale, p);
    add_array(args.in->sum, args.out->sum, p);
  }
  if (rows <= kFewRouted) {
    return launch(few, {rows}, std::max(32u * static_cast<unsigned>(rows), unsigned{kRouteThreads}), p, worker);
  }
  infeng_status status = launch(choose, {ceil_div(rows, kRouteThreads / 32)}, kRouteThreads, p, worker);
  if (status == INFENG_OK) status = launch(sort, {experts + 1}, kRouteThreads, p, worker);
  if (status == INFENG_OK) status = launch(copy, {rows}, kRouteThreads, p, worker);
  return status;
}

infeng_status run_combine(const infeng_args* common, int32_t, int64_t, int64_t, infeng_worker* worker) {
  static Entry entry{"combine"};
  const auto& args = *reinterpret_cast<const infeng_combine_args*>(common);
  Combine p;
  if (!flatten_steps(common, &p.steps) || p.steps.gated >= 0) {
    return fail(worker, INFENG_UNIMPLEMENTED, "combine does not fuse one of the steps");
  }
  p.x = matrix_of(args.x);
  p.out = matrix_of(args.out);
  p.out.columns = std::min(p.out.columns, static_cast<int32_t>(ceil_div(p.x.columns, 16) * 16));
  p.weights = args.weights;
  p.places = args.places;
  if (args.shared.data != nullptr) p.shared = matrix_of(args.shared);
  if (args.gate.data != nullptr) p.gate = matrix_of(args.gate);
  p.top_k = args.top_k;
  return launch(entry, {common->rows, ceil_div(p.out.columns, kRouteThreads)}, kRouteThreads, p, worker);
}

constexpr uint32_t kFuses = INFENG_EPILOGUE_BIT(INFENG_EPILOGUE_BIAS) | INFENG_EPILOGUE_BIT(INFENG_EPILOGUE_ROW_SCALE) |
                            INFENG_EPILOGUE_BIT(INFENG_EPILOGUE_RESIDUAL) | INFENG_EPILOGUE_BIT(INFENG_EPILOGUE_SCALE) |
                            INFENG_EPILOGUE_BIT(INFENG_EPILOGUE_SOFTCAP);

int32_t accepts_route(const infeng_problem* p) {
  return p->op == INFENG_OP_ROUTE && p->epilogue_count == 0 && p->experts <= INFENG_MOST_EXPERTS && p->top_k >= 1 &&
         p->top_k <= INFENG_MOST_CHOSEN && p->top_k <= p->experts;
}
int32_t accepts_combine(const infeng_problem* p) {
  return p->op == INFENG_OP_COMBINE && fuses_only(p, kFuses) && p->top_k >= 1 && p->top_k <= INFENG_MOST_CHOSEN;
}

}  // namespace

extern "C" const infeng_kernel cuda_route = whole_kernel(INFENG_OP_ROUTE, "route", 0, 0, accepts_route, run_route);
extern "C" const infeng_kernel cuda_combine =
    whole_kernel(INFENG_OP_COMBINE, "combine", kFuses, 0, accepts_combine, run_combine);

}  // namespace infeng_cuda
