#include "program/tensors.h"

#include <infeng/extension/error.h>

namespace infeng {

infeng_tensor matrix(const Value& value, int64_t columns) {
  return infeng_matrix(value.x, INFENG_F32, value.rows, columns, value.stride);
}

infeng_tensor vector(const Constant& constant) {
  infeng_tensor t = infeng_matrix(const_cast<float*>(constant.data), INFENG_F32, constant.size, 0, 1);
  t.ndim = 1;
  t.shape[1] = t.strides[1] = 0;
  return t;
}

infeng_tensor heads(const Value& value, int64_t column, int64_t count, int64_t head_dim, const char* what) {
  if (count < 1 || head_dim < 1 || column < 0 || column % kPanel != 0 || column + count * head_dim > value.stride) {
    fail(kBad, what, ": ", count, " heads of ", head_dim, " from column ", column, " on do not fit in a buffer of ",
         value.columns, " columns, or do not start on a panel of 16");
  }
  infeng_tensor t = matrix(value, count);
  t.data = value.x + column;
  t.ndim = 3;
  t.shape[2] = head_dim;
  t.strides[1] = head_dim;
  t.strides[2] = 1;
  return t;
}

infeng_activation describe(const Value& value) {
  infeng_activation a{};
  a.struct_size = sizeof a;
  a.group = static_cast<uint32_t>(value.group);
  a.rotated = static_cast<uint64_t>(value.rotated);
  if (value.quantized) {
    a.q = infeng_matrix(value.q, INFENG_I8, value.rows, value.stride, value.q_stride);
    a.scale = infeng_matrix(value.scale, INFENG_F32, value.rows, value.groups, value.group_stride);
    a.sum = infeng_matrix(value.sum, INFENG_I32, value.rows, value.groups, value.group_stride);
  }
  return a;
}

void track(Op& op, infeng_tensor& tensor) {
  if (tensor.data == nullptr) return;
  op.views.push_back({&tensor, static_cast<char*>(tensor.data), tensor.strides[0] * dtype_bytes(tensor.dtype)});
}

void track(Op& op, infeng_activation& activation) {
  for (infeng_tensor* t : {&activation.x, &activation.q, &activation.scale, &activation.sum}) track(op, *t);
}

}  // namespace infeng
