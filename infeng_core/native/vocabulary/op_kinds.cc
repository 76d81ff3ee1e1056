#include "vocabulary/op_kinds.h"

#include "error.h"

namespace infeng {
namespace {

constexpr Operand kEpilogue[] = {{"x", OperandKind::rows, offsetof(infeng_epilogue_args, in), 0}};

constexpr OpKind kKinds[] = {
    {INFENG_OP_EMBED, "embed"},
    {INFENG_OP_RMSNORM, "rmsnorm"},
    {INFENG_OP_LINEAR, "linear"},
    {INFENG_OP_EPILOGUE, "epilogue", kEpilogue, sizeof(infeng_epilogue_args), offsetof(infeng_epilogue_args, out)},
    {INFENG_OP_ROPE, "rope"},
    {INFENG_OP_KV_APPEND, "kv_append"},
    {INFENG_OP_ATTENTION, "attention"},
    {INFENG_OP_SHRINK, "shrink"},
    {INFENG_OP_ROUTE, "route"},
    {INFENG_OP_COMBINE, "combine"},
};

}  // namespace

std::span<const OpKind> op_kinds() { return kKinds; }

const OpKind& op_kind(uint32_t number) {
  for (const OpKind& kind : kKinds) {
    if (kind.number == number) return kind;
  }
  fail("unsupported", "there is no op ", number);
}

}  // namespace infeng
