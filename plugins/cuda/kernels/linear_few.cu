// Linears over integers for few rows: the weights stream through registers once, and the warps of a block share the
// inputs of its two panels, 128 at a time. Lane 4 g + t has outputs 4 (g % 4) .. + 3 of panel g / 4, in each half of
// those inputs lines 2 (t % 2) and 2 (t % 2) + 1 of quarter t / 2 of two, and the same inputs of rows g, 8 + g, ...
#include "linear_int.cuh"

namespace infeng_cuda {

template <int bits>
struct Raw {
  static constexpr int kMore = bits == 8 ? 2 : bits - 4;
  Chunk sub_scales;
  Chunk lines[2][2];                      // of each half
  Chunk more[2][kMore == 0 ? 1 : kMore];  // of bytes the lines four further, else the lines of upper bits
};

DEV Chunk streamed(const uint8_t* address) {
  const Words v = stream_words(address);
  return {{v.x, v.y, v.z, v.w}};
}

// Reads a superblock; `at` is where it has the lane's outputs of its first line. A second half that is not there is the
// first.
template <int bits>
DEV void read(const uint8_t* at, int t, bool has_second, Raw<bits>& raw) {
  using L = Lines<bits>;
  if constexpr (L::kSubScaled) raw.sub_scales = streamed(at);
  const uint8_t* quarter = at + L::kSubScales + t / 2 * L::kQuarter;
  UNROLL
  for (int half = 0; half < 2; ++half) {
    const uint8_t* const line = quarter + t % 2 * 128;
    UNROLL
    for (int i = 0; i < 2; ++i) raw.lines[half][i] = streamed(line + 64 * i);
    UNROLL
    for (int i = 0; i < Raw<bits>::kMore; ++i) {
      raw.more[half][i] = streamed((bits == 8 ? line : quarter) + 256 + 64 * i);
    }
    quarter += has_second ? 2 * L::kQuarter : 0;
  }
}

// Adds 64 inputs: sums[a][e] are outputs 2 a (of rows g) and 2 a + 1 of the lane's four, with rows 8 e + 2 t, 2 t + 1.
template <int bits, int eighths>
DEV void multiply(const Raw<bits>& raw, int half, int t, const Pair (&x)[eighths][2], int (&sums)[2][eighths][4]) {
  UNROLL
  for (int a = 0; a < 2; ++a) {
    Chunk near, far;
    UNROLL
    for (int n = 0; n < 4; ++n) {
      const int j = 2 * a + n % 2, i = n / 2;
      unsigned first = 0, second = 0;
      if constexpr (bits == 8) {
        first = raw.more[half][i].w[j];
      } else if constexpr (bits > 4) {  // the bits of line 2 (t % 2) come to the place of those of line 0
        const int shift = 2 * (bits - 4) * (t % 2);
        first = raw.more[half][0].w[j] >> shift;
        second = raw.more[half][bits - 5].w[j] >> shift;
      }
      const Factor factor = factor_of<bits>(raw.sub_scales.w[j] >> (t / 2 * 16) >> 8 * half);
      const Twice both = weights_of<bits>(raw.lines[half][i].w[j], first, second, i, factor);
      near.w[n] = both.near;
      far.w[n] = both.far;
    }
    UNROLL
    for (int e = 0; e < eighths; ++e) {
      mma_s8(sums[a][e], near.w, x[e][0].w);
      mma_s8(sums[a][e], far.w, x[e][1].w);
    }
  }
}

// Puts a warp's sums into its slot of shared memory and clears them.
template <int eighths>
DEV void leave(int (&sums)[2][eighths][4], int* slot, int lane) {
  UNROLL
  for (int i = 0; i < 8 * eighths; ++i) {
    int& sum = sums[i / (4 * eighths)][i / 4 % eighths][i % 4];
    slot[32 * i + lane] = sum;
    sum = 0;
  }
}

template <int bits, int eighths, bool whole>
DEV void linear_few(const LinearInt& p) {
  constexpr int kElements = 256 * eighths;  // products
  DYNAMIC_SHARED(int, slots);
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const int warp = thread / 32, warps = threads / 32, lane = thread % 32, g = lane / 4, t = lane % 4;
  const int row_tile = static_cast<int>(blockIdx.x) % p.row_tiles, row0 = row_tile * 8 * eighths;
  const int panel0 = static_cast<int>(blockIdx.x) / p.row_tiles * kFewPanels;
  const int panels = p.weight.count - panel0 < kFewPanels ? 1 : kFewPanels;
  const int last = p.rows - row0 < 8 * eighths ? p.rows - row0 - 1 : 8 * eighths - 1;

  // A panel or a row that is not there is another one, and its products are not written.
  constexpr int kSuperblock = Lines<bits>::kSuperblock;
  const uint8_t* at = p.weight.data + (panel0 + (g / 4 < panels ? g / 4 : 0)) * p.weight.panel_bytes +
                      Lines<bits>::kHead + g % 4 * 16 + static_cast<int64_t>(warp) * kSuperblock;
  const int8_t* x[eighths];
  UNROLL
  for (int e = 0; e < eighths; ++e) {
    const int row = 8 * e + g < last ? 8 * e + g : last;
    x[e] = p.in.q + (row0 + row) * p.in.q_stride + 128 * warp + t / 2 * 32 + t % 2 * 8;
  }

  // Products that this thread finishes: element `thread + i * threads` in the order of slots.
  const auto column_of = [](int element) {
    const int sum = element / 32;
    return element % 32 / 4 * 4 + sum / (4 * eighths) * 2 + sum / 2 % 2;
  };
  const auto row_of = [](int element) { return element / 128 % eighths * 8 + element % 4 * 2 + element / 32 % 2; };
  const auto scales_at = [&](int element) {
    return scales_of(p.in, row0 + (row_of(element) < last ? row_of(element) : last));
  };
  float d[eighths], xscale[eighths], out[eighths];  // xscale: of the row
  UNROLL
  for (int i = 0; i < eighths; ++i) {
    const int element = thread + i * threads;
    d[i] = output_scale(p.weight, panel0, panels, column_of(element) % 32);
    if constexpr (whole) xscale[i] = *scales_at(element);
    out[i] = 0.0f;
  }

  const int superblocks = (p.groups + 1) / 2;
  const auto read_superblock = [&](int b, Raw<bits>& raw) {
    if (b < superblocks) read(at, t, 2 * b + 1 < p.groups, raw);
    at += warps * kSuperblock;
  };
  int sums[2][eighths][4] = {};
  Raw<bits> now, next;
  read_superblock(warp, now);
  for (int first = 0; first < superblocks; first += warps) {
    const int b = first + warp;
    read_superblock(b + warps, next);
    if (b < superblocks) {
      const bool has_second = 2 * b + 1 < p.groups;
      UNROLL
      for (int half = 0; half < 2; ++half) {
        Pair inputs[eighths][2];
        UNROLL
        for (int i = 0; i < 2 * eighths; ++i) {
          inputs[i / 2][i % 2] = load<Pair>(x[i / 2] + (has_second ? 64 * half : 0) + i % 2 * 16);
          if (half == 1 && !has_second) inputs[i / 2][i % 2] = {};
        }
        multiply<bits, eighths>(now, half, t, inputs, sums);
        if constexpr (!whole) leave<eighths>(sums, slots + (2 * warp + half) * kElements, lane);
      }
      UNROLL
      for (int e = 0; e < eighths; ++e) x[e] += 128 * warps;
    }
    now = next;
    if constexpr (!whole) {
      sync_block();
      const int begin = 2 * first, end = begin + 2 * warps < p.groups ? begin + 2 * warps : p.groups;
      UNROLL
      for (int i = 0; i < eighths; ++i) {
        const int element = thread + i * threads;
        if (element >= kElements) break;
        const float* const scales = scales_at(element);
        int total = 0;  // a round begins with a group of the activation, since it has an even number of warps
        for (int group = begin; group < end; ++group) {
          total += slots[(group - begin) * kElements + element];
          if (((group + 1) & (p.wide - 1)) != 0 && group + 1 != p.groups) continue;
          const float scale = scales[group];
          out[i] = fmaf(static_cast<float>(total), Lines<bits>::kSubScaled ? scale : d[i] * scale, out[i]);
          total = 0;
        }
      }
      sync_block();
    }
  }
  float* const tile = reinterpret_cast<float*>(slots + (whole ? 1 : 2) * warps * kElements);
  if constexpr (whole) {
    leave<eighths>(sums, slots + warp * kElements, lane);
    sync_block();
  }
  UNROLL
  for (int i = 0; i < eighths; ++i) {
    const int element = thread + i * threads;
    if (element >= kElements) break;
    if constexpr (whole) {
      int total = 0;
      for (int w = 0; w < warps; ++w) total += slots[w * kElements + element];
      out[i] = static_cast<float>(total) * xscale[i];
    }
    const float value = whole || Lines<bits>::kSubScaled ? out[i] * d[i] : out[i];
    tile[row_of(element) * kFewStride + column_of(element)] = value;
  }
  sync_block();
  finish_tile(p.steps, p.out, tile, kFewStride, row0, last + 1, panel0, panels);
}

#define FEW(format, bits, rows, threads)                                                                       \
  KERNEL_OF(linear_few_##format##_row_##rows, LinearInt, threads, 1) { linear_few<bits, rows / 8, true>(p); } \
  KERNEL_OF(linear_few_##format##_group_##rows, LinearInt, threads, 1) { linear_few<bits, rows / 8, false>(p); }
#define FEW_OF(format, bits) FEW(format, bits, 8, 512) FEW(format, bits, 16, 384) FEW(format, bits, 32, 256)
FEW_OF(int4p32, 4)
FEW_OF(int5p32, 5)
FEW_OF(int6p32, 6)
FEW_OF(int8row, 8)

}  // namespace infeng_cuda
