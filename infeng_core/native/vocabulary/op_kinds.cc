#include "vocabulary/op_kinds.h"

#include <infeng/extension/error.h>

#include "vocabulary/foreign_ops.h"

namespace infeng {
namespace {

constexpr Operand kEpilogue[] = {{"x", OperandKind::rows, offsetof(infeng_epilogue_args, in), 0}};

constexpr Operand kLayernorm[] = {
    {"x", OperandKind::rows, offsetof(infeng_layernorm_args, x), 0},
    {"row_index", OperandKind::row_index, offsetof(infeng_layernorm_args, row_index), 0},
    {"weight", OperandKind::vector, offsetof(infeng_layernorm_args, weight), 0},
    {"bias", OperandKind::vector, offsetof(infeng_layernorm_args, bias), 0},
    {"eps", OperandKind::scalar, offsetof(infeng_layernorm_args, eps), 1e-5f},
};

constexpr OpKind kKinds[] = {
    {INFENG_OP_EMBED, "embed", sizeof(infeng_embed_args)},
    {INFENG_OP_RMSNORM, "rmsnorm", sizeof(infeng_rmsnorm_args)},
    {INFENG_OP_LINEAR, "linear", sizeof(infeng_linear_args)},
    {INFENG_OP_EPILOGUE, "epilogue", sizeof(infeng_epilogue_args), kEpilogue, offsetof(infeng_epilogue_args, out)},
    {INFENG_OP_ROPE, "rope", sizeof(infeng_rope_args)},
    {INFENG_OP_KV_APPEND, "kv_append", sizeof(infeng_kv_append_args)},
    {INFENG_OP_ATTENTION, "attention", sizeof(infeng_attention_args)},
    {INFENG_OP_SHRINK, "shrink", sizeof(infeng_shrink_args)},
    {INFENG_OP_ROUTE, "route", sizeof(infeng_route_args)},
    {INFENG_OP_COMBINE, "combine", sizeof(infeng_combine_args)},
    {INFENG_OP_LAYERNORM, "layernorm", sizeof(infeng_layernorm_args), kLayernorm, offsetof(infeng_layernorm_args, out)},
};

}  // namespace

std::span<const OpKind> op_kinds() { return kKinds; }

std::vector<const OpKind*> all_op_kinds() {
  std::vector<const OpKind*> found;
  for (const OpKind& kind : kKinds) found.push_back(&kind);
  for (const OpKind* kind : foreign_ops()) found.push_back(kind);
  return found;
}

const OpKind& op_kind(uint32_t number) {
  for (const OpKind* kind : all_op_kinds()) {
    if (kind->number == number) return *kind;
  }
  fail("unsupported", "there is no op ", number);
}

}  // namespace infeng
