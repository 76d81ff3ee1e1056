// The steps behind a product, applied to a tile of it in shared memory.
#pragma once

#include "functions.cuh"
#include "params.h"

namespace infeng_cuda {

// Applies one step that keeps the width to element (row, column).
DEV float apply(const Step& step, int64_t row, int column, float cur) {
  if (step.data != nullptr && column >= step.columns) return cur;
  switch (step.kind) {
    case 1:  // BIAS
      return cur + step.data[column];
    case 3:  // ROW_SCALE
      return cur * step.data[column];
    case 4:  // RESIDUAL
      return cur + step.data[row * step.stride + column];
    case 7:  // SCALE
      return cur * step.scalar;
    case 8:  // SOFTCAP
      return step.scalar * tanh_of(cur / step.scalar);
    case 9:  // ACTIVATE
      return function_of(step.function, cur);
    case 10:  // MUL
      return cur * function_of(step.function, step.data[row * step.stride + column]);
    default:
      return cur;
  }
}

DEV float apply(const Steps& steps, int first, int last, int64_t row, int column, float cur) {
  for (int i = first; i < last; ++i) cur = apply(steps.list[i], row, column, cur);
  return cur;
}

DEV float gate_of(const Step& step, float gate, float up) {
  return step.function == 6 ? swiglu_of(gate, up, step.scalar, step.limit) : function_of(step.function, gate) * up;
}

// Finishes a tile of products and writes it to `out`. All threads of the block call it, after a barrier.
//
// tile: (rows, panels * 16) in shared memory, `stride` floats from row to row, of rows row0.. and panels panel0.. of the
// product. With GATED_MUL, panel0 and panels are even. Columns from out.columns on are padding and are not written.
DEV void finish_tile(const Steps& steps, const Matrix& out, const float* tile, int stride, int64_t row0, int rows,
                     int panel0, int panels) {
  if (steps.gated < 0) {
    const int width = panels * kPanel;
    for (int i = static_cast<int>(threadIdx.x); i < rows * width; i += static_cast<int>(blockDim.x)) {
      const int m = i / width, n = i % width, column = panel0 * kPanel + n;
      const float cur = apply(steps, 0, steps.count, row0 + m, column, tile[m * stride + n]);
      if (column < out.columns) out.data[(row0 + m) * out.stride + column] = cur;
    }
    return;
  }
  const int width = panels / 2 * kPanel;
  for (int i = static_cast<int>(threadIdx.x); i < rows * width; i += static_cast<int>(blockDim.x)) {
    const int m = i / width, n = i % width;
    const int at = n / kPanel * 2 * kPanel + n % kPanel;  // of the gate; its up is a panel further
    const int column = panel0 * kPanel + at, narrow = panel0 / 2 * kPanel + n;
    const float gate = apply(steps, 0, steps.gated, row0 + m, column, tile[m * stride + at]);
    const float up = apply(steps, 0, steps.gated, row0 + m, column + kPanel, tile[m * stride + at + kPanel]);
    float cur = gate_of(steps.list[steps.gated], gate, up);
    cur = apply(steps, steps.gated + 1, steps.count, row0 + m, narrow, cur);
    if (narrow < out.columns) out.data[(row0 + m) * out.stride + narrow] = cur;
  }
}

}  // namespace infeng_cuda
