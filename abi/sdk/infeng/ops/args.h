// Access to the argument structs, shared by every op. SPDX-License-Identifier: Apache-2.0
#ifndef INFENG_OPS_ARGS_H
#define INFENG_OPS_ARGS_H

#include <infeng/abi.h>
#include <infeng/simd/vec.h>

namespace infeng {
namespace {

template <class T>
INFENG_INLINE T* row_of(const infeng_tensor& t, int64_t row) {
  return (T*)t.data + row * t.strides[0];
}

INFENG_INLINE int64_t min_of(int64_t a, int64_t b) { return a < b ? a : b; }
INFENG_INLINE int64_t max_of(int64_t a, int64_t b) { return a > b ? a : b; }
INFENG_INLINE int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
INFENG_INLINE int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

// The fields behind a step's header.
INFENG_INLINE const infeng_tensor& operand_of(const infeng_epilogue* e) {
  return ((const infeng_operand_epilogue*)e)->operand;
}
INFENG_INLINE const infeng_activation& act_of(const infeng_epilogue* e) {
  return *((const infeng_quantize_epilogue*)e)->act;
}
INFENG_INLINE const infeng_lora_epilogue& lora_of(const infeng_epilogue* e) { return *(const infeng_lora_epilogue*)e; }

// Arrays of structs that may grow have a stride in bytes, which their writer sets.
INFENG_INLINE const infeng_kv_segment* segment_at(const infeng_kv_segment* first, uint32_t stride, int64_t index) {
  return (const infeng_kv_segment*)((const char*)first + int64_t(stride) * index);
}

INFENG_INLINE bool has_epilogue(const infeng_args& args, uint32_t kind) {
  for (uint32_t i = 0; i < args.epilogue_count; ++i)
    if (args.epilogues[i]->kind == kind) return true;
  return false;
}

// The functions of steps that vector kernels implement: gates, or none.
INFENG_INLINE bool is_gate(uint32_t function) {
  return function <= INFENG_FUNCTION_SILU || function == INFENG_FUNCTION_GELU_TANH ||
         function == INFENG_FUNCTION_SWIGLU;
}

INFENG_INLINE bool is_wide(const infeng_epilogue& e) {
  return e.kind == INFENG_EPILOGUE_QUANTIZE && e.function == INFENG_FUNCTION_WIDE;
}

INFENG_INLINE bool is_row(const infeng_epilogue& e) {
  return e.kind == INFENG_EPILOGUE_QUANTIZE && e.function == INFENG_FUNCTION_ROW;
}

template <class Holder>
INFENG_INLINE bool has_row(const Holder& holder) {
  for (uint32_t i = 0; i < holder.epilogue_count; ++i)
    if (is_row(*holder.epilogues[i])) return true;
  return false;
}

template <class Holder>
INFENG_INLINE bool has_wide(const Holder& holder) {
  for (uint32_t i = 0; i < holder.epilogue_count; ++i)
    if (is_wide(*holder.epilogues[i])) return true;
  return false;
}

// Whether only QUANTIZE steps follow the first step that quantizes wide groups or whole rows.
template <class Holder>
INFENG_INLINE bool wide_comes_last(const Holder& holder) {
  bool seen = false;
  for (uint32_t i = 0; i < holder.epilogue_count; ++i) {
    if (seen && holder.epilogues[i]->kind != INFENG_EPILOGUE_QUANTIZE) return false;
    seen = seen || is_wide(*holder.epilogues[i]) || is_row(*holder.epilogues[i]);
  }
  return true;
}

// The widest group that the list of a call quantizes; at least 64.
INFENG_INLINE int64_t widest_group(const infeng_args& args) {
  int64_t widest = kGroup;
  for (uint32_t i = 0; i < args.epilogue_count; ++i)
    if (is_wide(*args.epilogues[i])) widest = max_of(widest, act_of(args.epilogues[i]).group);
  return widest;
}

// Whether all steps of the list of a problem or call are in `mask`, and their functions are gates, or WIDE if `wide`:
// the kernel has whole wide groups in its tiles, or ROW if `row`: it has whole rows.
template <class Holder>
INFENG_INLINE bool epilogues_within(const Holder& holder, uint32_t mask, bool wide = false, bool row = false) {
  for (uint32_t i = 0; i < holder.epilogue_count; ++i) {
    const infeng_epilogue& e = *holder.epilogues[i];
    if (e.kind > 31 || !(INFENG_EPILOGUE_BIT(e.kind) & mask)) return false;
    if (!is_gate(e.function) && !(wide && is_wide(e)) && !(row && is_row(e))) return false;
  }
  return true;
}

// Stores an error text for the host and returns the status.
inline infeng_status fail(infeng_worker* worker, infeng_status status, const char* text) {
  if (worker && worker->message && worker->message_size > 0) {
    int32_t i = 0;
    for (; text[i] && i + 1 < worker->message_size; ++i) worker->message[i] = text[i];
    worker->message[i] = 0;
  }
  return status;
}

constexpr uint64_t kHandlesGates = INFENG_NEED_BIT(INFENG_NEED_FUNCTION(INFENG_FUNCTION_SILU)) |
                                   INFENG_NEED_BIT(INFENG_NEED_FUNCTION(INFENG_FUNCTION_GELU_TANH)) |
                                   INFENG_NEED_BIT(INFENG_NEED_FUNCTION(INFENG_FUNCTION_SWIGLU));
constexpr uint64_t kHandlesWide = INFENG_NEED_BIT(INFENG_NEED_FUNCTION(INFENG_FUNCTION_WIDE));
constexpr uint64_t kHandlesRows = INFENG_NEED_BIT(INFENG_NEED_FUNCTION(INFENG_FUNCTION_ROW));
constexpr uint64_t kHandlesLora = INFENG_NEED_BIT(INFENG_NEED_LORA_F32) | INFENG_NEED_BIT(INFENG_NEED_LORA_BF16) |
                                  INFENG_NEED_BIT(INFENG_NEED_LORA_I8) | INFENG_NEED_BIT(INFENG_NEED_LORA_I8T4);

// Makes a kernel's descriptor. `Op` has accepts, tiles and run, and optionally workspace, phases and the needs that it
// handles.
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
  if constexpr (requires { Op::kHandles; }) k.handles = Op::kHandles;
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
