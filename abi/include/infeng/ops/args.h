// Access to the argument structs, shared by every op. SPDX-License-Identifier: Apache-2.0
#ifndef INFENG_OPS_ARGS_H
#define INFENG_OPS_ARGS_H

#include <infeng/abi.h>
#include <infeng/simd/vec.h>

namespace infeng {
namespace {

template <class T>
INFENG_INLINE T* row_of(const infeng_tensor& t, int64_t row) {
  return (T*)((char*)t.data + t.byte_offset) + row * t.strides[0];
}

INFENG_INLINE int64_t min_of(int64_t a, int64_t b) { return a < b ? a : b; }
INFENG_INLINE int64_t max_of(int64_t a, int64_t b) { return a > b ? a : b; }
INFENG_INLINE int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
INFENG_INLINE int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

// Arrays of structs that may grow are stepped by the size that their writer knew.
INFENG_INLINE const infeng_epilogue* next_epilogue(const infeng_epilogue* e) {
  return (const infeng_epilogue*)((const char*)e + e->struct_size);
}
INFENG_INLINE const infeng_kv_segment* segment_at(const infeng_kv_segment* first, uint32_t stride, int64_t index) {
  return (const infeng_kv_segment*)((const char*)first + int64_t(stride) * index);
}

INFENG_INLINE bool has_epilogue(const infeng_args& args, uint32_t kind) {
  const infeng_epilogue* e = args.epilogues;
  for (uint32_t i = 0; i < args.epilogue_count; ++i, e = next_epilogue(e))
    if (e->kind == kind) return true;
  return false;
}

// True if the list holds nothing but kinds of `mask`.
INFENG_INLINE bool epilogues_within(const infeng_args& args, uint32_t mask) {
  const infeng_epilogue* e = args.epilogues;
  for (uint32_t i = 0; i < args.epilogue_count; ++i, e = next_epilogue(e))
    if (e->kind > 31 || !(INFENG_EPILOGUE_BIT(e->kind) & mask)) return false;
  return true;
}

// Leaves a text for the host and returns the status.
inline infeng_status fail(infeng_worker* worker, infeng_status status, const char* text) {
  if (worker && worker->message && worker->message_size > 0) {
    int32_t i = 0;
    for (; text[i] && i + 1 < worker->message_size; ++i) worker->message[i] = text[i];
    worker->message[i] = 0;
  }
  return status;
}

// A kernel's row of the table; `Op` supplies accepts, tiles, run and, where it needs them, workspace and phases.
template <class Op>
constexpr infeng_kernel kernel(const char* name, const char* features, int32_t priority = 0) {
  infeng_kernel k{};
  k.struct_size = sizeof(infeng_kernel);
  k.op = Op::kOp;
  k.name = name;
  k.features = features;
  k.numerics = INFENG_NUMERICS_EXACT;
  k.kind = INFENG_KIND_TILES;
  k.priority = priority;
  k.fuses = Op::kFuses;
  k.accepts = Op::accepts;
  if constexpr (requires { Op::workspace; }) k.workspace = Op::workspace;
  if constexpr (requires { Op::phases; }) k.phases = Op::phases;
  k.tiles = Op::tiles;
  k.run = Op::run;
  return k;
}

}  // namespace
}  // namespace infeng
#endif  // INFENG_OPS_ARGS_H
