// The ops: what is known of each beside its builder in ops.cc. An op over rows alone needs no builder.
#pragma once

#include <infeng/abi.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace infeng {

struct Op;

// Of one call: multiply-adds of matrix products; bytes of weights, adapters, keys and values, each read or written
// once.
struct Work {
  int64_t macs = 0;
  int64_t bytes = 0;
};

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
  Work (*work)(const Op& op);  // NULL: has no products and reads no weights
  // Of an op over rows alone, which reads rows of some columns and writes rows of as many, before its epilogues; empty:
  // the op has a builder of its own.
  std::span<const Operand> operands = {};
  size_t args_size = 0;
  size_t out_offset = 0;
};

// By number.
std::span<const OpKind> op_kinds();

// Throws Error "unsupported" for a number that is no op.
const OpKind& op_kind(uint32_t number);

}  // namespace infeng
