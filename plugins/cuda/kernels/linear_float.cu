// Linears over float weights: a chain of fused multiply-adds for each output, inputs ascending, so a chain is one
// thread's. Copies in the background keep the next weights and inputs on their way to shared memory meanwhile.
#include "formats.cuh"
#include "linear_other.h"
#include "steps.cuh"

namespace infeng_cuda {
namespace {

struct alignas(16) Quad {
  float v[4];
};

// Stage `s` of the weights: lines of 32 words, one for each output of both panels.
template <class Format>
DEV void copy_weights(const LinearFloat& p, int panel0, int panels, int s, float* to) {
  constexpr int kLines = 64 / Format::kInputs;
  for (int i = static_cast<int>(threadIdx.x); i < kLines * 8; i += static_cast<int>(blockDim.x)) {
    const int panel = i / 4 % 2 < panels ? i / 4 % 2 : 0;
    copy_async(to + 4 * i, p.weight.data + (panel0 + panel) * p.weight.panel_bytes +
                               (static_cast<int64_t>(s) * kLines + i / 8) * 64 + i % 4 * 16);
  }
}

// The same of the inputs: rows of 64.
DEV void copy_inputs(const LinearFloat& p, int row0, int rows, int s, float* to) {
  for (int i = static_cast<int>(threadIdx.x); i < rows * 16; i += static_cast<int>(blockDim.x)) {
    const int k = 64 * s + i % 16 * 4;
    const float* const from = p.x.data + (row0 + i / 16) * p.x.stride + k;
    if (p.is_aligned != 0 && k + 4 <= p.weight.k) {
      copy_async(to + 4 * i, from);
    } else {
      for (int j = 0; j < 4 && k + j < p.weight.k; ++j) to[4 * i + j] = from[j];
    }
  }
}

template <class Format, int own_rows, int stages>
DEV void linear_float(const LinearFloat& p) {
  constexpr int kWeights = 64 * 32 / Format::kInputs;  // words of a stage
  DYNAMIC_SHARED(float, memory);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int tile_rows = static_cast<int>(blockDim.x) / 32 * own_rows;
  const int row0 = static_cast<int>(blockIdx.x) % p.row_tiles * tile_rows;
  const int panel0 = static_cast<int>(blockIdx.x) / p.row_tiles * kOtherPanels;
  const int panels = p.weight.count - panel0 < kOtherPanels ? 1 : kOtherPanels;
  const int rows = p.rows - row0 < tile_rows ? p.rows - row0 : tile_rows;
  const int count = (p.weight.k + 63) / 64, stage_words = kWeights + 64 * tile_rows;
  // A panel that is not there is another one; its products, and those of rows that are not there, are not written.
  const auto copy = [&](int s) {
    float* const to = memory + s % stages * stage_words;
    if (s < count) {
      copy_weights<Format>(p, panel0, panels, s, to);
      copy_inputs(p, row0, rows, s, to + kWeights);
    }
    end_copies();
  };

  float sums[own_rows] = {};
  for (int s = 0; s < stages - 1; ++s) copy(s);
  for (int s = 0; s < count; ++s) {
    wait_copies<stages - 2>();
    sync_block();
    copy(s + stages - 1);
    if (warp * own_rows >= rows) continue;
    const float* const weights = memory + s % stages * stage_words + lane;
    const float* const inputs = memory + s % stages * stage_words + kWeights + warp * own_rows * 64;
    const auto add = [&](int k, int width) {  // inputs k .. k + width - 1
      float w[4];
      UNROLL
      for (int j = 0; j < 4; j += Format::kInputs) {
        Format::widen(bits_of_float(weights[(k + j) / Format::kInputs * 32]), w + j);
      }
      UNROLL
      for (int r = 0; r < own_rows; ++r) {
        const Quad x = *reinterpret_cast<const Quad*>(inputs + r * 64 + k);
        UNROLL
        for (int j = 0; j < 4; ++j) {
          if (j < width) sums[r] = fmaf(x.v[j], w[j], sums[r]);
        }
      }
    };
    const int last = p.weight.k - 64 * s < 64 ? p.weight.k - 64 * s : 64;
    int k = 0;
    for (; k + 16 <= last; k += 16) {
      UNROLL
      for (int j = 0; j < 16; j += 4) add(k + j, 4);
    }
    for (; k < last; k += 4) add(k, last - k);
  }

  sync_block();
  UNROLL
  for (int r = 0; r < own_rows; ++r) memory[(warp * own_rows + r) * kOtherStride + lane] = sums[r];
  sync_block();
  finish_tile(p.steps, p.out, memory, kOtherStride, row0, rows, panel0, panels);
}

}  // namespace

#define FLOATS(name, Format)                                                                                          \
  KERNEL_OF(linear_##name##_2, LinearFloat, kFloatThreads, 1) { linear_float<Format, 2, kFloatShapes[0].stages>(p); } \
  KERNEL_OF(linear_##name##_4, LinearFloat, kFloatThreads, 1) { linear_float<Format, 4, kFloatShapes[1].stages>(p); } \
  KERNEL_OF(linear_##name##_8, LinearFloat, kFloatThreads, 2) { linear_float<Format, 8, kFloatShapes[2].stages>(p); }
FLOATS(f32, F32)
FLOATS(bf16, Bf16)

}  // namespace infeng_cuda
