// The ops: the word of each, and the operands of an op over rows alone, which needs no builder of its own.
#pragma once

#include <infeng/abi.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace infeng {

enum class OperandKind {
  rows,    // infeng_tensor (rows, columns) f32
  vector,  // infeng_tensor (columns) f32
  scalar,  // float
};

// One operand of an op over rows, by its place in the args struct.
struct Operand {
  const char* name;
  OperandKind kind;
  size_t offset;
  float typical;  // of a scalar, for tests and for the first-use check
};

struct OpKind {
  uint32_t number;
  const char* name;
  // Of an op over rows alone, which reads rows of some columns and writes rows of as many, before its epilogues; empty:
  // the op has a builder of its own in program/.
  std::span<const Operand> operands = {};
  size_t args_size = 0;
  size_t out_offset = 0;
};

// By number.
std::span<const OpKind> op_kinds();

// Throws Error "unsupported" for a number that is no op.
const OpKind& op_kind(uint32_t number);

}  // namespace infeng
