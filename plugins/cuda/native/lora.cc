// shrink, the A half of adapters. The B half is a step of epilogue.cc.
#include <algorithm>
#include <cstddef>

#include "../kernels/shrink.h"
#include "flatten.h"

namespace infeng_cuda {
namespace {

constexpr int kRowsTogether = 4;  // of a block, where segments have so many

// How A is stored: the type of its elements, and the kernels for one row and for several.
struct Storage {
  uint32_t dtype;
  int64_t size;
  int split;  // blocks of a panel that is not folded
  Entry* entries[2];
  unsigned threads[2];
  int64_t shared[2];
};

int64_t panel_bytes(const Storage& storage, int64_t k) {
  return storage.size * 16 * 64 * ceil_div(k, 64) + (storage.dtype == INFENG_I8 ? 64 : 0);
}

// Blocks that do a segment, `rows` rows each.
int64_t blocks_of(const Storage& storage, const infeng_lora_segment& s, int64_t rows) {
  const int64_t panels = ceil_div(s.rank, 16);
  const bool folds = s.rank - (panels - 1) * 16 <= 8;
  return (panels * storage.split - (folds ? storage.split - 1 : 0)) * ceil_div(s.row_end - s.row_begin, rows);
}

// Two launches at most: one for segments of few rows, one for those of many. More if there are more segments than fit.
infeng_status shrink(const Storage& storage, const infeng_shrink_args& args, infeng_worker* worker) {
  const infeng_activation& in = *args.in;
  const bool is_integer = storage.dtype == INFENG_I8;
  if ((is_integer ? in.q.data : in.x.data) == nullptr) {
    return fail(worker, INFENG_INVALID_ARGUMENT, "the input has no values of the type that the adapter's A needs");
  }
  Shrink p;
  if (is_integer) p.in = rows8_of(in);
  if (!is_integer) p.x = matrix_of(in.x);
  p.u = matrix_of(args.u);
  p.k = static_cast<int32_t>(in.x.data != nullptr ? in.x.shape[1] : in.q.shape[1]);
  p.panel_bytes = panel_bytes(storage, p.k);
  p.is_row = in.group == INFENG_GROUP_ROW;
  for (int many = 0; many < 2; ++many) {
    int64_t blocks = 0;
    p.count = 0;
    for (int32_t i = 0; i < args.segment_count; ++i) {
      const auto& s = *reinterpret_cast<const infeng_lora_segment*>(reinterpret_cast<const std::byte*>(args.segments) +
                                                                    static_cast<size_t>(i) * args.segment_stride);
      if (s.dtype != storage.dtype) return fail(worker, INFENG_UNIMPLEMENTED, "an adapter is stored in another type");
      const int32_t rows = s.row_end - s.row_begin;
      if (s.rank > 0 && rows > 0 && (rows >= kRowsTogether) == (many == 1)) {
        p.parts[p.count++] = {
            static_cast<const uint8_t*>(s.a), s.scaling, s.weight, s.row_begin, s.row_end, s.rank, s.u_column,
            static_cast<int32_t>(blocks)};
        blocks += blocks_of(storage, s, many == 0 ? 1 : kRowsTogether);
      }
      if (p.count == 0 || (p.count < kMostShrinkParts && i + 1 < args.segment_count)) continue;
      const infeng_status status =
          launch(*storage.entries[many], {blocks}, storage.threads[many], p, worker, storage.shared[many]);
      if (status != INFENG_OK) return status;
      p.count = 0;
      blocks = 0;
    }
  }
  return INFENG_OK;
}

infeng_status run_int8(const infeng_args* common, int32_t, int64_t, int64_t, infeng_worker* worker) {
  static Entry one{"shrink_int8_1"}, many{"shrink_int8_4"};
  static const Storage storage{
      INFENG_I8, 1, 16 / kShrinkOutputs, {&one, &many}, {kShrinkThreads<1>, kShrinkThreads<kRowsTogether>}, {0, 0}};
  return shrink(storage, *reinterpret_cast<const infeng_shrink_args*>(common), worker);
}

infeng_status run_f32(const infeng_args* common, int32_t, int64_t, int64_t, infeng_worker* worker) {
  static Entry one{"shrink_f32_1"}, many{"shrink_f32_4"};
  static const Storage storage{INFENG_F32,
                               4,
                               1,
                               {&one, &many},
                               {kChainThreads, kChainThreads},
                               {kShrinkShared<float, 1>, kShrinkShared<float, kRowsTogether>}};
  return shrink(storage, *reinterpret_cast<const infeng_shrink_args*>(common), worker);
}

infeng_status run_bf16(const infeng_args* common, int32_t, int64_t, int64_t, infeng_worker* worker) {
  static Entry one{"shrink_bf16_1"}, many{"shrink_bf16_4"};
  static const Storage storage{INFENG_BF16,
                               2,
                               1,
                               {&one, &many},
                               {kChainThreads, kChainThreads},
                               {kShrinkShared<uint16_t, 1>, kShrinkShared<uint16_t, kRowsTogether>}};
  return shrink(storage, *reinterpret_cast<const infeng_shrink_args*>(common), worker);
}

int32_t accepts(const infeng_problem* p, uint32_t weight, bool act) {
  return p->op == INFENG_OP_SHRINK && p->weight_format == weight && act && p->epilogue_count == 0;
}
int32_t accepts_f32(const infeng_problem* p) { return accepts(p, INFENG_WEIGHT_F32, p->act_format == INFENG_ACT_F32); }
int32_t accepts_bf16(const infeng_problem* p) {
  return accepts(p, INFENG_WEIGHT_BF16, p->act_format == INFENG_ACT_F32);
}
int32_t accepts_int8(const infeng_problem* p) {
  return accepts(p, INFENG_WEIGHT_INT8_ROW,
                 p->act_format == INFENG_ACT_INT8_G64 || p->act_format == INFENG_ACT_INT8_ROW);
}

}  // namespace

extern "C" const infeng_kernel cuda_shrink_int8 =
    whole_kernel(INFENG_OP_SHRINK, "shrink_int8", 0, 0, accepts_int8, run_int8);
extern "C" const infeng_kernel cuda_shrink_f32 =
    whole_kernel(INFENG_OP_SHRINK, "shrink_f32", 0, 0, accepts_f32, run_f32);
extern "C" const infeng_kernel cuda_shrink_bf16 =
    whole_kernel(INFENG_OP_SHRINK, "shrink_bf16", 0, 0, accepts_bf16, run_bf16);

}  // namespace infeng_cuda
