// Linears over integers for many rows: a block of 4 warps has 128 outputs and 128 or 64 rows, each warp half of both.
// Shared memory has int8 weights and inputs of 128 inputs at a time, in rows of 8 chunks of 16 bytes. A lane reads a
// chunk of a row: its words 0 and 1 are what it gives one mma_s8, words 2 and 3 another. Where the chunks of a row lie
// is turned by the row, so that the lanes that read or write together meet all banks.
#include "linear_int.cuh"

namespace infeng_cuda {

DEV int turn(int row) { return (row & 1) << 2 | (row >> 1 & 3); }
// The place of a chunk, in bytes.
DEV int place(int row, int chunk) { return 128 * row + 16 * (chunk ^ turn(row)); }

// What a thread unpacks of a superblock: a quarter of 4 outputs of a panel.
template <int bits>
struct Job {
  static constexpr int kMore = bits == 8 ? 4 : bits - 4;
  Chunk sub_scales;
  Chunk lines[4];
  Chunk more[kMore == 0 ? 1 : kMore];  // of bytes the lines four further, else the lines of upper bits
};

template <int bits>
DEV void read(const uint8_t* at, int quarter, Job<bits>& job) {
  using L = Lines<bits>;
  if constexpr (L::kSubScaled) job.sub_scales = load<Chunk>(at);
  at += L::kSubScales + quarter * L::kQuarter;
  UNROLL
  for (int l = 0; l < 4; ++l) job.lines[l] = load<Chunk>(at + 64 * l);
  UNROLL
  for (int l = 0; l < Job<bits>::kMore; ++l) job.more[l] = load<Chunk>(at + 64 * (4 + l));
}

// Of weights, shared memory has for each panel 8 rows of two outputs, twice: with words 0 and 1 of all chunks, in the
// order of mma_s8's registers, and then with words 2 and 3. Row 4 a + quad has outputs 4 quad + 2 a and + 2 a + 1.
// `to`: the place of the thread's first chunk; those of others follow from `turn`.
template <int bits>
DEV void unpack(const Job<bits>& job, int quarter, int to, unsigned char* weights) {
  UNROLL
  for (int a = 0; a < 2; ++a) {
    Chunk near[2], far[2];
    UNROLL
    for (int i = 0; i < 8; ++i) {
      const int j = 2 * a + i % 2, l = i / 2;
      unsigned first = 0, second = 0;
      if constexpr (bits == 8) {
        first = job.more[l].w[j];
      } else if constexpr (bits > 4) {
        first = job.more[0].w[j];
        second = job.more[bits - 5].w[j];
      }
      const Factor factor = factor_of<bits>(job.sub_scales.w[j] >> (quarter % 2 * 16 + quarter / 2 * 8));
      const Twice both = weights_of<bits>(job.lines[l].w[j], first, second, l, factor);
      near[l / 2].w[i % 4] = both.near;
      far[l / 2].w[i % 4] = both.far;
    }
    UNROLL
    for (int i = 0; i < 2; ++i) {
      *reinterpret_cast<Chunk*>(weights + 512 * a + 1024 * i + (to ^ 32 * a)) = near[i];
      *reinterpret_cast<Chunk*>(weights + 512 * a + 1024 * i + (to ^ (32 * a + 16))) = far[i];
    }
  }
}

// Integers up to 2^22 are added to this number as bits, and are floats once it is subtracted as one.
constexpr int kMagicBits = 0x4b400000;
constexpr float kMagic = 12582912.0f;

// sums[o][e] += weights of outputs [16 o, 16 o + 16) times rows [8 e, 8 e + 8) of 64 inputs. `at`: see `place`.
template <int eighths>
DEV void multiply(const unsigned char* weights, const unsigned char* inputs, int at, int (&sums)[4][eighths][4]) {
  Chunk w[4][2];
  UNROLL
  for (int i = 0; i < 8; ++i) w[i / 2][i % 2] = load<Chunk>(weights + 1024 * i + at);
  UNROLL
  for (int e = 0; e < eighths; ++e) {
    const Chunk x = load<Chunk>(inputs + 1024 * e + at);
    UNROLL
    for (int i = 0; i < 2; ++i) {
      const unsigned b[2] = {x.w[2 * i], x.w[2 * i + 1]};
      UNROLL
      for (int o = 0; o < 4; ++o) mma_s8(sums[o][e], w[o][i].w, b);
    }
  }
}

// Adds the sums of a group of the activation to `out`, and clears them. The lane has rows 8 e + i and outputs 16 o + j,
// which scales[8 e + i] and d[16 o + j] belong to.
template <bool is_product, int eighths>
DEV void add_group(const float* scales, const float* d, int (&sums)[4][eighths][4], float (&out)[4][eighths][4]) {
  UNROLL
  for (int n = 0; n < 16 * eighths; ++n) {
    const int o = n % 4, e = n / 16, element = n / 4 % 4;
    const float scale = scales[8 * e + element % 2];
    const float sum = float_of_bits(static_cast<unsigned>(sums[o][e][element])) - kMagic;
    const float factor = is_product ? d[16 * o + element / 2] * scale : scale;
    out[o][e][element] = fmaf(sum, factor, out[o][e][element]);
    sums[o][e][element] = kMagicBits;
  }
}

template <int bits, int eighths, bool whole>
DEV void linear_many(const LinearInt& p) {
  constexpr int kRows = 16 * eighths, kInputBytes = 128 * kRows, kWeightBytes = 128 * kManyPanels * kPanel;
  constexpr bool is_product = !whole && !Lines<bits>::kSubScaled;  // whether scales of both are multiplied first
  static_assert(whole || kRows == 64);
  DYNAMIC_SHARED(unsigned char, memory);
  SHARED float d[kManyPanels * kPanel];  // scales of outputs
  SHARED float scales[2][2][kRows];      // of rows, for each 64 inputs of two superblocks, or only [0][0] for the row
  unsigned char* const weights = memory + 3 * kInputBytes;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32, g = lane / 4, t = lane % 4;
  const int row0 = static_cast<int>(blockIdx.x) % p.row_tiles * kRows;
  const int panel0 = static_cast<int>(blockIdx.x) / p.row_tiles * kManyPanels;
  const int rows = p.rows - row0 < kRows ? p.rows - row0 : kRows;
  const int panels = p.weight.count - panel0 < kManyPanels ? p.weight.count - panel0 : kManyPanels;
  const int superblocks = (p.groups + 1) / 2;

  // A panel that is not there is another one, a row anything; their products are not written.
  const int quad = thread % 4, quarter = thread / 4 % 4, panel = thread / 16;
  const int to = 2048 * panel + place(quad, 2 * quarter);
  const uint8_t* const source = p.weight.data + (panel0 + (panel < panels ? panel : 0)) * p.weight.panel_bytes +
                                Lines<bits>::kHead + 16 * quad;
  const int line = thread / 8, chunk = thread % 8;  // of rows line + 16 i
  const int8_t* const x = p.in.q + (row0 + line) * p.in.q_stride + 16 * chunk;
  const auto copy_inputs = [&](int b, int stage) {
    unsigned char* const stored = memory + stage * kInputBytes + place(line, chunk);
    const int8_t* from = x + 128 * b;
    UNROLL
    for (int i = 0; i < kRows / 16; ++i) {
      if (2 * b + chunk / 4 < p.groups && line + 16 * i < rows) copy_async(stored + 2048 * i, from);
      from += 16 * p.in.q_stride;
    }
    end_copies();
  };
  const auto clamped = [&](int row) { return row < rows ? row : rows - 1; };
  Job<bits> job;
  [[maybe_unused]] float scale = 0.0f;
  const auto read_weights = [&](int b) {
    if (2 * b + quarter / 2 < p.groups) {
      read<bits>(source + static_cast<int64_t>(b) * Lines<bits>::kSuperblock, quarter, job);
    }
    if constexpr (!whole) {
      const int group = 2 * b + thread / kRows;
      if (group < p.groups) scale = scales_of(p.in, row0 + clamped(thread % kRows))[group];
    }
  };
  const auto unpack_weights = [&](int b) {
    if (2 * b + quarter / 2 < p.groups) unpack<bits>(job, quarter, to, weights + b % 2 * kWeightBytes);
    if constexpr (!whole) scales[b % 2][thread / kRows][thread % kRows] = scale;
  };

  int sums[4][eighths][4];
  float out[4][eighths][4];
  UNROLL
  for (int n = 0; n < 16 * eighths; ++n) {
    sums[n % 4][n / 16][n / 4 % 4] = whole ? 0 : kMagicBits;
    out[n % 4][n / 16][n / 4 % 4] = 0.0f;
  }
  d[thread] = output_scale(p.weight, panel0, panels, thread);
  if (whole && thread < kRows) scales[0][0][thread] = *scales_of(p.in, row0 + clamped(thread));

  const int first_output = warp % 2 * 64, first_row = warp / 2 * 8 * eighths, at = place(g, t);
  const int output = first_output + g % 4 * 4 + g / 4 * 2, row = first_row + 2 * t;  // of the lane's first sum
  copy_inputs(0, 0);
  if (superblocks > 1) copy_inputs(1, 1);
  read_weights(0);
  unpack_weights(0);
  if (superblocks > 1) read_weights(1);
  int stage = 0;
  for (int b = 0; b < superblocks; ++b) {
    if (b + 1 < superblocks)
      wait_copies<1>();
    else
      wait_copies<0>();
    sync_block();
    if (b + 2 < superblocks) copy_inputs(b + 2, stage == 0 ? 2 : stage - 1);
    if (b + 1 < superblocks) unpack_weights(b + 1);
    if (b + 2 < superblocks) read_weights(b + 2);
    const unsigned char* const w = weights + b % 2 * kWeightBytes + 128 * first_output;
    const unsigned char* const inputs = memory + stage * kInputBytes + 128 * first_row;
    ROLLED
    for (int half = 0; half < 2; ++half) {
      const int group = 2 * b + half;
      if (group >= p.groups) break;
      multiply<eighths>(w, inputs, at ^ 64 * half, sums);
      if constexpr (!whole) {
        const bool is_last = ((group + 1) & (p.wide - 1)) == 0 || group + 1 == p.groups;
        if (is_last) add_group<is_product, eighths>(scales[b % 2][half] + row, d + output, sums, out);
      }
    }
    stage = stage == 2 ? 0 : stage + 1;
  }

  sync_block();
  float* const tile = reinterpret_cast<float*>(memory);
  UNROLL
  for (int n = 0; n < 16 * eighths; ++n) {
    const int o = n % 4, e = n / 16, element = n / 4 % 4, i = element % 2, j = element / 2;
    float value = out[o][e][element];
    if constexpr (whole) value = static_cast<float>(sums[o][e][element]) * scales[0][0][row + 8 * e + i];
    if constexpr (!is_product) value = value * d[output + 16 * o + j];
    tile[(row + 8 * e + i) * kManyStride + output + 16 * o + j] = value;
  }
  sync_block();
  if (panels == kManyPanels)  // so that divisions by the width are shifts
    finish_tile(p.steps, p.out, tile, kManyStride, row0, rows, panel0, kManyPanels);
  else
    finish_tile(p.steps, p.out, tile, kManyStride, row0, rows, panel0, panels);
}

#define MANY(format, bits)                                                                       \
  KERNEL_OF(linear_many_##format##_row_128, LinearInt, 128, 2) { linear_many<bits, 8, true>(p); } \
  KERNEL_OF(linear_many_##format##_row_64, LinearInt, 128, 3) { linear_many<bits, 4, true>(p); }  \
  KERNEL_OF(linear_many_##format##_group_64, LinearInt, 128, 2) { linear_many<bits, 4, false>(p); }
MANY(int4p32, 4)
MANY(int5p32, 5)
MANY(int6p32, 6)
MANY(int8row, 8)

}  // namespace infeng_cuda
