// Epilogues as an op of their own. A thread owns 4 columns; only rounding needs more of a row.
#include "epilogue.h"

#include "quantize.cuh"
#include "steps.cuh"

namespace infeng_cuda {
namespace {

DEV Quad widened(const float* b) { return *reinterpret_cast<const Quad*>(b); }
DEV Quad widened(const uint16_t* b) {
  struct alignas(8) Four {
    uint16_t v[4];
  };
  const Four four = *reinterpret_cast<const Four*>(b);
  return {{float_of_bf16(four.v[0]), float_of_bf16(four.v[1]), float_of_bf16(four.v[2]), float_of_bf16(four.v[3])}};
}
DEV Quad widened(const int8_t* b) {
  struct alignas(4) Four {
    int8_t v[4];
  };
  const Four four = *reinterpret_cast<const Four*>(b);
  return {{static_cast<float>(four.v[0]), static_cast<float>(four.v[1]), static_cast<float>(four.v[2]),
           static_cast<float>(four.v[3])}};
}

// sum = fma(u[r], B[n][r], sum) for 4 n, r ascending.
template <class T>
DEV void add_products(const T* b, const float* u, int rank, Quad& sum) {
  constexpr int kTogether = 8;  // read at once
  int r = 0;
  for (; r + kTogether <= rank; r += kTogether) {
    Quad weight[kTogether];
    float x[kTogether];
    UNROLL for (int j = 0; j < kTogether; ++j) {
      weight[j] = widened(b + (r + j) * kPanel);
      x[j] = u[r + j];
    }
    UNROLL for (int j = 0; j < kTogether; ++j) {
      UNROLL for (int i = 0; i < 4; ++i) sum.v[i] = fmaf(x[j], weight[j].v[i], sum.v[i]);
    }
  }
  for (; r < rank; ++r) {
    const Quad weight = widened(b + r * kPanel);
    const float x = u[r];
    UNROLL for (int i = 0; i < 4; ++i) sum.v[i] = fmaf(x, weight.v[i], sum.v[i]);
  }
}

// Applies a segment to columns [column, column + 4) of one of its rows, if it covers them.
DEV void add_part(const LoraPart& s, const float* u, int column, Quad& cur) {
  const int panels = column / kPanel - s.panel_begin;
  if (panels < 0 || panels % s.panel_step != 0 || panels / s.panel_step >= s.panel_count) return;
  const int panel = panels / s.panel_step, n = panel * kPanel + column % kPanel;
  const int64_t begin = static_cast<int64_t>(panel) * s.rank * kPanel + column % kPanel;
  if (s.rank > 0 && s.dtype == kF32) add_products(static_cast<const float*>(s.b) + begin, u, s.rank, cur);
  if (s.rank > 0 && s.dtype == kBf16) add_products(static_cast<const uint16_t*>(s.b) + begin, u, s.rank, cur);
  if (s.rank > 0 && s.dtype == kInt8) {
    Quad sum{};
    add_products(static_cast<const int8_t*>(s.b) + begin, u, s.rank, sum);
    UNROLL for (int i = 0; i < 4; ++i) cur.v[i] = fmaf(sum.v[i], float_of_bf16(s.b_scale[n + i]), cur.v[i]);
  }
  UNROLL for (int i = 0; i < 4; ++i) {
    if (s.row_scale != nullptr) cur.v[i] = cur.v[i] * s.row_scale[n + i];
    if (s.bias != nullptr) cur.v[i] = cur.v[i] + s.bias[n + i];
  }
}

// The segments that may cover a row: row_begin ascends, so those behind the last that begins at it or before do not.
struct PartRange {
  int first, last;
};
template <class Params>
DEV PartRange parts_of(const Params& p, int64_t row) {
  int first = 0, last = p.count;
  while (first < last) {
    const int middle = (first + last) / 2;
    if (p.parts[middle].row_begin <= row) {
      first = middle + 1;
    } else {
      last = middle;
    }
  }
  return {last > 0 ? p.parts[last - 1].first : 0, last};
}

// Columns [column, column + 4) of the result. Of a gated list the steps before the gate run twice: turn 0 makes the
// gate, turn 1 its factor, and turn 2 the rest.
template <class Params>
DEV Quad result(const Params& p, int64_t row, const PartRange& range, int column) {
  const Steps& steps = p.steps;
  const bool is_gated = steps.gated >= 0;
  Quad cur{}, gate{};
  ROLLED for (int turn = is_gated ? 0 : 2; turn < 3; ++turn) {
    const bool reads = turn < 2 || !is_gated;
    int first = 0, last = steps.count, at = column;
    if (reads) {
      if (is_gated) {
        last = steps.gated;
        at = (column / kPanel * 2 + turn) * kPanel + column % kPanel;
      }
      gate = cur;
      cur = read4(p.in.data + row * p.in.stride, at, p.in.columns);
      ROLLED for (int i = range.first; i < range.last; ++i) {
        const LoraPart& s = p.parts[i];
        if (row < s.row_end) add_part(s, p.u + row * p.u_stride + s.u_column, at, cur);
      }
    } else {
      first = steps.gated + 1;
      UNROLL for (int i = 0; i < 4; ++i) cur.v[i] = gate_of(steps.list[steps.gated], gate.v[i], cur.v[i]);
    }
    ROLLED for (int step = first; step < last; ++step) {
      UNROLL for (int i = 0; i < 4; ++i) cur.v[i] = apply(steps.list[step], row, at + i, cur.v[i]);
    }
  }
  return cur;
}

// A block has `span` columns of a row.
template <class Params>
DEV void finish(const Params& p) {
  DYNAMIC_SHARED(float, held);
  const int64_t row = p.row0 + blockIdx.x;
  const int begin = static_cast<int>(blockIdx.y) * p.span;
  const int end = p.columns - begin < p.span ? p.columns : begin + p.span;
  const int own = begin + 4 * thread_number(), step = 4 * thread_count();
  float* const out = p.out.data + row * p.out.stride;
  const auto at = [&](int column) -> Quad& { return *reinterpret_cast<Quad*>(held + (column - begin)); };
  if (p.way != Way::read) {
    const PartRange range = parts_of(p, row);
    ROLLED for (int column = own; column < end; column += step) {
      const Quad made = result(p, row, range, column);
      if (p.way == Way::hold) {
        at(column) = made;
      } else {
        write4(out, column, p.out.columns, made);
      }
    }
    if (p.way == Way::write) return;
    sync_block();
  }
  const auto read = [&](int column) {
    if (p.way == Way::read) return read4(p.in.data + row * p.in.stride, column, p.in.columns);
    return column < end ? at(column) : Quad{};
  };
  if (p.out.data != nullptr) {
    ROLLED for (int column = own; column < end; column += step) write4(out, column, p.out.columns, read(column));
  }
  if (p.rounding.q != nullptr) round_row(p.rounding, row, begin, end, read);
}

}  // namespace

KERNEL_OF(epilogue_few, EpilogueFew, kMostRoundThreads, 1) { finish(p); }
KERNEL_OF(epilogue_many, EpilogueMany, kMostRoundThreads, 1) { finish(p); }

}  // namespace infeng_cuda
