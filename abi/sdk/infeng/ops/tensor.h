/* Views of matrices for argument structs, used by hosts, tests and benchmarks. SPDX-License-Identifier: Apache-2.0 */
#ifndef INFENG_OPS_TENSOR_H
#define INFENG_OPS_TENSOR_H

#include <infeng/abi.h>

/* (rows, columns), rows `stride` elements apart. */
static inline infeng_tensor infeng_matrix(void* data, int32_t dtype, int64_t rows, int64_t columns, int64_t stride) {
  infeng_tensor t = {data, dtype, INFENG_DEVICE_CPU, 0, 2, {rows, columns, 0, 0}, {stride, 1, 0, 0}};
  return t;
}

#endif /* INFENG_OPS_TENSOR_H */
