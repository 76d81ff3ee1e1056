// shrink: u[m][u_column + r] = ((x[m] . A[r]) * scaling[r]) * weight. A block has a panel of A, or half of one, and
// some rows of a segment, which share what is read of A.
#include "shrink.h"

#include "quantize.cuh"

namespace infeng_cuda {
namespace {

// What a block does.
struct Task {
  const ShrinkPart* part;
  int panel;
  int begin;       // of the outputs of the panel
  int row0;        // its first row
  bool is_folded;  // outputs from 8 on belong to inputs from `half` on, and are added to the others
};

DEV int groups_of(int k) { return (k + kGroup - 1) / kGroup; }
DEV int half_of(int k) { return (groups_of(k) + 1) / 2 * kGroup; }

// `split`: blocks of a panel that is not folded.
DEV Task task_of(const Shrink& p, int rows, int split) {
  const int block = static_cast<int>(blockIdx.x);
  int first = 0, last = p.count;  // the last segment that begins at this block or before
  while (last - first > 1) {
    const int middle = (first + last) / 2;
    if (p.parts[middle].first_block <= block) {
      first = middle;
    } else {
      last = middle;
    }
  }
  const ShrinkPart& part = p.parts[first];
  const int panels = (part.rank + kPanel - 1) / kPanel;
  const bool folds = part.rank - (panels - 1) * kPanel <= kPanel / 2;
  const int tiles = split * panels - (folds ? split - 1 : 0), index = block - part.first_block, tile = index % tiles;
  const int panel = tile / split;
  return {&part, panel, tile % split * (kPanel / split), part.row_begin + index / tiles * rows,
          folds && panel == panels - 1};
}

// The factor of output n of a block, which a thread reads long before it needs it.
DEV float scaling_of(const Task& task, int n) { return task.part->scaling[task.panel * kPanel + task.begin + n]; }

// Writes output n of row r of a block; the threads of a block that have a `sum` are those that `adds`. All call it.
DEV void write_sum(const Shrink& p, const Task& task, float* shared, int r, int n, bool adds, float sum,
                   float scaling) {
  const ShrinkPart& part = *task.part;
  if (task.is_folded) {
    if (adds) shared[r * kPanel + n] = sum;
    sync_block();
    if (adds) sum = n < kPanel / 2 ? sum + shared[r * kPanel + n + kPanel / 2] : 0.0f;
  }
  const int row = task.row0 + r;
  if (!adds || row >= part.row_end) return;
  const int column = part.u_column + task.panel * kPanel + task.begin + n;
  p.u.data[row * p.u.stride + column] = (sum * scaling) * part.weight;
}

// Rows behind the end of the segment repeat its last one. From `first`, the block's first row, to its row r:
template <class T>
DEV const T* row_of(const Task& task, const T* first, int64_t stride, int r) {
  const int last = task.part->row_end - 1 - task.row0;
  return first + (r < last ? r : last) * static_cast<int>(stride);
}

// ------------------------------------------------------------------------------------------------- int8 A ---

// acc = the products of a group of 64 inputs with one output, whose words lie 64 bytes apart.
template <int rows>
DEV void multiply_group(const Shrink& p, const Task& task, const uint8_t* a, int group, int (&acc)[rows]) {
  const int32_t* const sum = p.in.sum + task.row0 * p.in.sum_stride + group;
  const int8_t* const q = p.in.q + task.row0 * p.in.q_stride + group * kGroup;
  struct alignas(16) Four {
    int v[4];
  };
  constexpr int kTogether = rows == 1 ? 16 : 8;  // words in registers
  UNROLL for (int r = 0; r < rows; ++r) acc[r] = -128 * *row_of(task, sum, p.in.sum_stride, r);
  ROLLED for (int first = 0; first < 16; first += kTogether) {
    unsigned word[kTogether];
    UNROLL for (int l = 0; l < kTogether; ++l) word[l] = *reinterpret_cast<const unsigned*>(a + 64 * (first + l));
    UNROLL for (int r = 0; r < rows; ++r) {
      const Four* const x = reinterpret_cast<const Four*>(row_of(task, q, p.in.q_stride, r) + 4 * first);
      UNROLL for (int part = 0; part < kTogether / 4; ++part) {
        const Four four = x[part];
        UNROLL for (int l = 0; l < 4; ++l) acc[r] = dot4_u8(word[4 * part + l], four.v[l], acc[r]);
      }
    }
  }
}

template <int rows>
DEV void shrink_integers(const Shrink& p) {
  constexpr int kKept = 4096 / rows;  // sums of groups and outputs in shared memory
  SHARED int products[rows][kKept];
  SHARED float scales[rows][kKept / kShrinkOutputs];  // of groups, and of those of the other half of a folded panel
  SHARED float sums[rows * kPanel];
  const Task task = task_of(p, rows, kPanel / kShrinkOutputs);
  const int outputs = task.is_folded ? kPanel : kShrinkOutputs, steps = kShrinkThreads<rows> / outputs;
  const int half = task.is_folded ? half_of(p.k) / kGroup : groups_of(p.k);
  const uint8_t* const panel = task.part->a + task.panel * p.panel_bytes;

  // A thread always has the same output, in different groups.
  const int n = thread_number() % outputs, own = thread_number() / outputs, side = n / kShrinkOutputs;
  const int from = side * half, count = (side == 0 ? half : groups_of(p.k) - half);
  const uint8_t* const lines = panel + 64 + 4 * (task.begin + n);

  // The thread that adds up output n of row r is thread r * outputs + n.
  const int r = thread_number() / outputs;
  const bool adds = r < rows;
  const float scale = reinterpret_cast<const float*>(panel)[task.begin + n];
  const float* const xscale = p.in.scale + task.row0 * p.in.scale_stride + from;
  const float scaling = adds ? scaling_of(task, n) : 0.0f;
  const float row_scale = adds && count > 0 ? row_of(task, xscale, p.in.scale_stride, r)[0] : 0.0f;
  float sum = 0.0f;

  if (p.is_row) {
    int total[rows] = {};
    for (int g = own; g < count; g += steps) {
      int acc[rows];
      multiply_group(p, task, lines + g * (kGroup * kPanel), from + g, acc);
      UNROLL for (int i = 0; i < rows; ++i) total[i] += acc[i];
    }
    UNROLL for (int i = 0; i < rows; ++i) products[i][thread_number()] = total[i];
    sync_block();
    if (adds && count > 0) {
      int all = 0;
      for (int i = 0; i < steps; ++i) all += products[r][i * outputs + n];
      sum = (static_cast<float>(all) * row_scale) * scale;
    }
  } else {
    const int together = kKept / outputs;  // groups
    for (int begin = 0; begin < half; begin += together) {
      const int end = count - begin < together ? count - begin : together;
      for (int g = own; g < end; g += steps) {
        int acc[rows];
        multiply_group(p, task, lines + (begin + g) * (kGroup * kPanel), from + begin + g, acc);
        UNROLL for (int i = 0; i < rows; ++i) {
          products[i][g * outputs + n] = acc[i];
          if (n % kShrinkOutputs == 0) {
            scales[i][side * together + g] = row_of(task, xscale, p.in.scale_stride, i)[begin + g];
          }
        }
      }
      sync_block();
      for (int g = 0; g < end && adds; ++g) {
        sum = fmaf(static_cast<float>(products[r][g * outputs + n]), scale * scales[r][side * together + g], sum);
      }
      sync_block();
    }
  }
  write_sum(p, task, sums, r, n, adds, sum, scaling);
}

// ----------------------------------------------------------------------------------------------- A of floats ---

DEV float widened_a(float w) { return w; }
DEV float widened_a(uint16_t w) { return float_of_bf16(w); }

// Thread t multiplies by element t of each 8 inputs of a panel as they lie: f32 [8][16], bf16 [4][16][2].
template <class T>
DEV int chain_of(int t) {
  return sizeof(T) == 4 ? t / 16 : t / 32 * 2 + t % 2;
}
template <class T>
DEV int output_of(int t) {
  return sizeof(T) == 4 ? t % 16 : t / 2 % 16;
}

template <class T, int rows>
DEV void shrink_floats(const Shrink& p) {
  constexpr int kInputs = kStageInputs<T>, kCount = kStages<rows>, kStage = kStageBytes + kStageInputBytes<T, rows>;
  DYNAMIC_SHARED(unsigned char, stages);
  SHARED float chains[rows * kChainThreads];
  SHARED float sums[rows * kPanel];
  const Task task = task_of(p, rows, 1);
  const int half = task.is_folded ? half_of(p.k) : p.k, length = half < p.k ? half : p.k;  // of the first half
  const int count = (length + kInputs - 1) / kInputs;                                      // of stages
  const uint8_t* const panel = task.part->a + task.panel * p.panel_bytes;
  const int bytes = groups_of(length) * kGroup * kPanel * static_cast<int>(sizeof(T));
  const float* const x = p.x.data + task.row0 * p.x.stride;
  const int t = thread_number();
  const auto stage_of = [&](int s) { return stages + s % kCount * kStage; };

  const auto fetch = [&](int s) {
    if (s < count) {
      for (int at = t * 16; at < kStageBytes; at += kChainThreads * 16) {
        if (s * kStageBytes + at < bytes) copy_async(stage_of(s) + at, panel + s * kStageBytes + at);
      }
      auto* const xs = reinterpret_cast<float*>(stage_of(s) + kStageBytes);
      for (int i = t; i < kStageInputBytes<T, rows> / 4; i += kChainThreads) {
        const int r = i / (2 * kInputs), side = i / kInputs % 2, k = s * kInputs + i % kInputs;
        if (k >= (side == 0 ? length : p.k - length)) continue;
        copy_word_async(xs + i, row_of(task, x, p.x.stride, r) + side * half + k);
      }
    }
    end_copies();
  };

  const int c = chain_of<T>(t), n = output_of<T>(t), side = task.is_folded ? n / (kPanel / 2) : 0;
  const int inputs = side == 0 ? length : p.k - length;
  const bool adds = t < rows * kPanel;
  const float scaling = adds ? scaling_of(task, t % kPanel) : 0.0f;
  float acc[rows] = {}, sum = 0.0f;
  for (int s = 0; s < kCount - 1; ++s) fetch(s);
  for (int s = 0; s < count; ++s) {
    wait_copies<kCount - 2>();
    sync_block();
    fetch(s + kCount - 1);
    const T* const a = reinterpret_cast<const T*>(stage_of(s)) + t;
    const float* const own = reinterpret_cast<const float*>(stage_of(s) + kStageBytes) + side * kInputs + c;
    const int left = inputs - s * kInputs - c;
    const auto add = [&](int j) {
      const float w = widened_a(a[j * kChainThreads]);
      UNROLL for (int r = 0; r < rows; ++r) acc[r] = fmaf(own[r * 2 * kInputs + j * kChains], w, acc[r]);
    };
    if (left > kInputs - kChains) {
      UNROLL for (int j = 0; j < kInputs / kChains; ++j) add(j);
    } else {
      for (int j = 0; j * kChains < left; ++j) add(j);
    }
  }
  UNROLL for (int r = 0; r < rows; ++r) chains[r * kChainThreads + c * kPanel + n] = acc[r];
  sync_block();
  if (adds) {
    const float* const own = chains + t / kPanel * kChainThreads + t % kPanel;
    float v[kChains];
    UNROLL for (int i = 0; i < kChains; ++i) v[i] = own[i * kPanel];
    UNROLL for (int width = kChains / 2; width > 0; width /= 2) {
      UNROLL for (int i = 0; i < width; ++i) v[i] = v[i] + v[i + width];
    }
    sum = v[0];
  }
  write_sum(p, task, sums, t / kPanel, t % kPanel, adds, sum, scaling);
}

}  // namespace

KERNEL_OF(shrink_int8_1, Shrink, kShrinkThreads<1>, 2) { shrink_integers<1>(p); }
KERNEL_OF(shrink_int8_4, Shrink, kShrinkThreads<4>, 2) { shrink_integers<4>(p); }
KERNEL_OF(shrink_f32_1, Shrink, kChainThreads, 2) { shrink_floats<float, 1>(p); }
KERNEL_OF(shrink_f32_4, Shrink, kChainThreads, 2) { shrink_floats<float, 4>(p); }
KERNEL_OF(shrink_bf16_1, Shrink, kChainThreads, 2) { shrink_floats<uint16_t, 1>(p); }
KERNEL_OF(shrink_bf16_4, Shrink, kChainThreads, 2) { shrink_floats<uint16_t, 4>(p); }

}  // namespace infeng_cuda
