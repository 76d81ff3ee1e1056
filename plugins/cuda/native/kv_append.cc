// KV_APPEND.
#include "../kernels/kv_append.h"

#include "flatten.h"
#include "kv.h"

namespace infeng_cuda {
namespace {

Entry kAppend{"kv_append"};

infeng_status flush(KvAppend& p, infeng_worker* worker) {
  const int64_t items = int64_t{2} * p.rows * p.cache.kv_heads;
  const infeng_status status = launch(kAppend, {ceil_div(items, kAppendWarps)}, 32 * kAppendWarps, p, worker);
  p.span_count = p.rows = 0;
  return status;
}

template <uint32_t format, Kind k, Kind v, bool rotated>
infeng_status run(const infeng_args* common, int32_t, int64_t, int64_t, infeng_worker* worker) {
  const auto& args = *reinterpret_cast<const infeng_kv_append_args*>(common);
  if (!cache_fits(*args.cache, format, rotated)) return fail(worker, INFENG_INVALID_ARGUMENT, kOtherCache);
  KvAppend p;
  p.cache = flatten_cache(*args.cache);
  p.k = static_cast<const float*>(args.k.data);
  p.v = static_cast<const float*>(args.v.data);
  p.k_row = args.k.strides[0];
  p.k_head = args.k.strides[1];
  p.v_row = args.v.strides[0];
  p.v_head = args.v.strides[1];
  p.k_kind = k;
  p.v_kind = v;
  p.rotated = rotated;
  for (int32_t i = 0; i < args.segment_count; ++i) {
    Span span = span_of(args, i);
    if (span.rows <= 0) continue;
    span.first_row = p.rows;
    p.rows += span.rows;
    p.spans[p.span_count++] = span;
    if (p.span_count < kMostSpans) continue;
    if (const infeng_status status = flush(p, worker)) return status;
  }
  return p.span_count == 0 ? INFENG_OK : flush(p, worker);
}

template <uint32_t format, bool rotated>
int32_t accepts(const infeng_problem* p) {
  return p->op == INFENG_OP_KV_APPEND && p->kv_format == format && head_fits(p->head_dim, rotated) &&
         head_fits(p->v_head_dim, rotated) && fuses_only(p, 0);
}

}  // namespace

#define INFENG_KERNEL(name, number, k, v, rotated)                                                      \
  extern "C" const infeng_kernel cuda_kv_append_##name =                                                \
      whole_kernel(INFENG_OP_KV_APPEND, "kv_append_" #name, 0, INFENG_NEED_BIT(INFENG_NEED_HEAD_SIZES), \
                   accepts<number, rotated>, run<number, k, v, rotated>);
INFENG_CACHE_FORMATS(INFENG_KERNEL)

}  // namespace infeng_cuda
