// Views of a program's values as kernels see them.
#pragma once

#include <infeng/abi.h>
#include <infeng/ops/tensor.h>

#include "program/program.h"

namespace infeng {

// The first `columns` of a buffer.
infeng_tensor matrix(const Value& value, int64_t columns);

infeng_tensor vector(const Constant& constant);

// (rows, count, head_dim) from `column` on. Throws Error "invalid_argument" naming `what`.
infeng_tensor heads(const Value& value, int64_t column, int64_t count, int64_t head_dim, const char* what);

// The int8 part of an activation; empty for a buffer.
infeng_activation describe(const Value& value);

// Adds the tensor to the op's row views; Op::set_rows() then points it at the rows of a step.
void track(Op& op, infeng_tensor& tensor);
void track(Op& op, infeng_activation& activation);

}  // namespace infeng
