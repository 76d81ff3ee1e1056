// The ops: their names, and the operands of row ops.
#pragma once

#include <infeng/abi.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace infeng {

enum class OperandKind {
  rows,       // infeng_tensor (rows, columns) f32
  vector,     // infeng_tensor (columns) f32
  scalar,     // float
  row_index,  // optional: the rows of the first operand that are read, const int32_t*
};

// One operand of a row op.
struct Operand {
  const char* name;
  OperandKind kind;
  size_t offset;  // in the args struct
  float typical;  // value of a scalar in tests and in the first-use check
};

struct OpKind {
  uint32_t number;
  const char* name;
  size_t args_size;
  // A row op reads and writes rows of the same number of columns (before its epilogues), and Program::row_op() adds it.
  // Empty: another member function of Program adds the op.
  std::span<const Operand> operands = {};
  size_t out_offset = 0;  // of a row op
};

// Sorted by number.
std::span<const OpKind> op_kinds();

// Throws Error "unsupported" for an unknown number.
const OpKind& op_kind(uint32_t number);

}  // namespace infeng
