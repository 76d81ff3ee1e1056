// The names of ops and the operands of row ops. Ops are the core's own, or libraries describe them.
#pragma once

#include <infeng/abi.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace infeng {

enum class OperandKind : uint32_t {
  rows = INFENG_OPERAND_ROWS,            // infeng_tensor (rows, columns) f32
  vector = INFENG_OPERAND_VECTOR,        // infeng_tensor (columns) f32
  scalar = INFENG_OPERAND_SCALAR,        // float
  row_index = INFENG_OPERAND_ROW_INDEX,  // optional: the rows of the first operand that are read, const int32_t*
};

// One operand of a row op.
struct Operand {
  const char* name;
  OperandKind kind;
  size_t offset;  // in the args struct
  float value;    // of a scalar that a graph leaves out, in tests and in the first-use check
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

// The core's own ops, sorted by number.
std::span<const OpKind> op_kinds();

// The core's own ops by number, then registered ones in order of registration.
std::vector<const OpKind*> all_op_kinds();

// Throws Error "unsupported" for an unknown number. The result lives as long as the process.
const OpKind& op_kind(uint32_t number);

}  // namespace infeng
