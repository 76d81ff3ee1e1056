// The ops that libraries describe.
#pragma once

#include <infeng/abi.h>

#include <string>
#include <vector>

#include "vocabulary/op_kinds.h"

namespace infeng {

constexpr uint32_t kMostStruct = 4096;  // far beyond any struct of the ABI: a larger size of a library's is garbage

// What became of an op that a library lists.
struct Registered {
  std::string name;   // "" for an op without a name
  std::string fault;  // why it cannot be used; "" for one that can
};

// Registers the op of a library and sets its number; ops of the same name, operands and sizes are one op.
Registered add_op(infeng_op* op);

// In order of registration; they live as long as the process.
std::vector<const OpKind*> foreign_ops();

}  // namespace infeng
