// Linears over integers whose sums are scaled every 32 or 64 inputs. The warps of a block take groups of 64 inputs by
// turns and leave exact sums in shared memory, which threads scale and add in order, each for its own products.
//
// Weights are the 16 rows of mma_s8. Lane 4 g + t has outputs 4 (g % 4) .. + 3 of panel g / 4, of each part of a group
// (formats.cuh) line t, and the same inputs of rows g, 8 + g, ...
#include "formats.cuh"
#include "linear_other.h"
#include "steps.cuh"

namespace infeng_cuda {
namespace {

struct alignas(16) Chunk {
  unsigned w[4];
};

// What a lane reads of a group.
template <class Format, int eighths>
struct Raw {
  Chunk lines[2][Format::kBytes ? 2 : 1];
  unsigned scales;  // of output lane % 16 of panel lane / 16
  unsigned sub_scales;
  Chunk inputs[eighths];  // 16 t .. 16 t + 15 of row 8 e + g
  float row_scale;        // of row `lane`
};

constexpr unsigned kOnes = 0x01010101u;

// Leaves the sums of a group in the warp's slot.
template <class Format, int eighths, class Slot>
DEV void multiply(const Raw<Format, eighths>& raw, Slot& slot, int lane) {
  const int g = lane / 4, t = lane % 4;
  UNROLL
  for (int e = 0; e < eighths; ++e) *reinterpret_cast<Chunk*>(&slot.inputs[8 * e + g][4 * t]) = raw.inputs[e];
  slot.scales[lane] = raw.scales;
  if constexpr (Format::kStep != 0) slot.sub_scales[lane] = raw.sub_scales;
  if (lane < 8 * eighths) slot.row_scales[lane] = raw.row_scale;
  unsigned w[2][2][4];
  UNROLL
  for (int i = 0; i < 8; ++i) {
    const int part = i / 4, j = i % 4;
    w[part][j / 2][j % 2] = Format::near_of(raw.lines[part][0].w[j]);
    w[part][j / 2][2 + j % 2] = Format::far_of(raw.lines[part][Format::kBytes ? 1 : 0].w[j]);
  }
  sync_warp();
  UNROLL
  for (int e = 0; e < eighths; ++e) {
    int sums[Format::kSums][2][4] = {};
    UNROLL
    for (int part = 0; part < 2; ++part) {
      const int* const inputs = &slot.inputs[8 * e + g][Format::kNear / 4 * part + t];
      const int near = inputs[0], far = inputs[Format::kFar / 4];
      const unsigned x[2] = {static_cast<unsigned>(near), static_cast<unsigned>(far)};
      UNROLL
      for (int a = 0; a < 2; ++a) mma_s8(sums[part % Format::kSums][a], w[part][a], x);
      if constexpr (Format::kStep != 0) {
        int total = dot4_u8(kOnes, near, dot4_u8(kOnes, far, 0));
        total += shuffle_xor(total, 1);
        total += shuffle_xor(total, 2);
        if (t == 0) slot.totals[part][8 * e + g] = total;
      }
    }
    UNROLL
    for (int i = 0; i < 8 * Format::kSums; ++i) {
      slot.sums[i / 8][32 * (8 * e + i % 8) + lane] = sums[i / 8][i / 4 % 2][i % 4];
    }
  }
}

// An integer up to 2^22 as a float: it is added to this number as bits.
DEV float float_of_sum(int sum) {
  return float_of_bits(0x4b400000u + static_cast<unsigned>(sum)) - 12582912.0f;
}

// What a thread finishes: an element of the sums, which is a column and a row of the block.
struct Product {
  int element, column, row;
};
DEV Product product_of(int element) {  // 256 e + 128 a + 32 i + 4 g + t
  const int t = element % 4, g = element / 4 % 8, i = element / 32 % 4, a = element / 128 % 2, e = element / 256;
  return {element, 4 * g + 2 * a + i / 2, 8 * e + 2 * t + i % 2};
}

// Adds a group to a product, of which `a` and `b` are the sums of a superblock with minima.
template <class Format, class Slot>
DEV void add_group(const Slot& slot, const Product& product, bool is_last, float& a, float& b, float& out) {
  const unsigned scales = slot.scales[product.column];
  const float first = float_of_half(static_cast<uint16_t>(scales));
  const float second = float_of_half(static_cast<uint16_t>(scales >> 16));
  const float x = slot.row_scales[product.row];
  if constexpr (Format::kStep == 0) {
    out = fmaf(float_of_sum(slot.sums[0][product.element] >> Format::kShift), first * x, out);
    if constexpr (Format::kSums == 2) {
      out = fmaf(float_of_sum(slot.sums[1][product.element] >> Format::kShift), second * x, out);
    }
    return;
  }
  const unsigned sub = slot.sub_scales[product.column];
  int acc = 0;
  UNROLL
  for (int h = 0; h < Format::kSums; ++h) {
    acc += static_cast<int>(sub >> 8 * h & 255u) * slot.sums[h][product.element];
    const float y = static_cast<float>(-slot.totals[h][product.row]) * x;
    b = fmaf(static_cast<float>(sub >> (16 + 8 * h) & 255u), y, b);
  }
  a = fmaf(static_cast<float>(acc), x, a);
  if (!is_last) return;
  out = fmaf(second, b, fmaf(first, a, out));
  a = b = 0.0f;
}

// Adds `count` groups, the first of which begins a superblock.
template <class Format, class Slot>
DEV void add_groups(const Slot* slots, int count, const Product& product, float& out) {
  constexpr int kStep = Format::kStep == 0 ? 1 : Format::kStep;
  float a = 0.0f, b = 0.0f;
  int i = 0;
  for (; i + 4 <= count; i += 4) {
    UNROLL
    for (int j = 0; j < 4; ++j) add_group<Format>(slots[i + j], product, (j + 1) % kStep == 0, a, b, out);
  }
  for (; i < count; ++i) {
    add_group<Format>(slots[i], product, (i + 1) % kStep == 0 || i + 1 == count, a, b, out);
  }
}

template <class Format, int eighths>
DEV void linear_group(const LinearGroup& p) {
  constexpr int kRows = 8 * eighths;
  using Slot = GroupSlot<Format::kSums, kRows>;
  DYNAMIC_SHARED(Slot, slots);
  SHARED float tile[kRows * kOtherStride];
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x), warps = threads / 32;
  const int warp = thread / 32, lane = thread % 32, g = lane / 4, t = lane % 4;
  const int row0 = static_cast<int>(blockIdx.x) % p.row_tiles * kRows;
  const int panel0 = static_cast<int>(blockIdx.x) / p.row_tiles * kOtherPanels;
  const int panels = p.weight.count - panel0 < kOtherPanels ? 1 : kOtherPanels;
  const int last = p.rows - row0 < kRows ? p.rows - row0 - 1 : kRows - 1;

  // A panel or a row that is not there is another one, and its products are not written.
  const int panel_bytes = static_cast<int>(p.weight.panel_bytes), stride = static_cast<int>(p.in.q_stride);
  const auto panel_at = [&](int i) { return i < panels ? i * panel_bytes : 0; };
  const auto row_at = [&](int i) { return i < last ? i : last; };
  const uint8_t* const weights = p.weight.data + panel0 * p.weight.panel_bytes;
  const int8_t* const inputs = p.in.q + row0 * p.in.q_stride;
  const float* const row_scales = p.in.scale + row0 * p.in.scale_stride;
  const int lines_at = panel_at(g / 4) + 64 * t + 16 * (g % 4), scales_at = panel_at(lane / 16), n = lane % 16;
  const int row_scale_at = row_at(lane) * static_cast<int>(p.in.scale_stride);
  int inputs_at[eighths];
  UNROLL
  for (int e = 0; e < eighths; ++e) inputs_at[e] = row_at(8 * e + g) * stride + 16 * t;
  const auto read = [&](int group, Raw<Format, eighths>& raw) {
    UNROLL
    for (int i = 0; i < (Format::kBytes ? 4 : 2); ++i) {
      const int line = Format::lines(group) + i % 2 * Format::kPart + i / 2 * 256;
      const Words words = stream_words(weights + (line + lines_at));
      raw.lines[i % 2][i / 2] = {{words.x, words.y, words.z, words.w}};
    }
    const uint8_t* const scales = weights + (Format::scales(group) + scales_at + 2 * n);
    raw.scales = read_as<uint16_t>(scales);
    if constexpr (Format::kSums == 2) raw.scales |= static_cast<unsigned>(read_as<uint16_t>(scales + 32)) << 16;
    if constexpr (Format::kStep != 0) {
      raw.sub_scales = read_as<unsigned>(weights + (Format::lines(group) - 64 + scales_at + 4 * n));
    }
    UNROLL
    for (int e = 0; e < eighths; ++e) {
      raw.inputs[e] = *reinterpret_cast<const Chunk*>(inputs + (inputs_at[e] + 64 * group));
    }
    raw.row_scale = row_scales[row_scale_at + group];
  };

  Product products[eighths];
  float out[eighths];
  UNROLL
  for (int i = 0; i < eighths; ++i) {
    products[i] = product_of(thread + i * threads);
    out[i] = 0.0f;
  }
  const auto each_product = [&](auto&& finish) {
    UNROLL
    for (int i = 0; i < eighths; ++i) {
      if (products[i].element < 32 * kRows && products[i].row <= last) finish(products[i], out[i]);
    }
  };

  // Few rows have few blocks, so the next group is read before this one is multiplied.
  constexpr bool kAhead = eighths < 4;
  Raw<Format, eighths> now{}, next{};
  if (warp < p.groups) read(warp, now);
  for (int begin = 0; begin < p.groups; begin += warps) {
    const int group = begin + warp;
    if (group < p.groups) {
      const bool has_next = group + warps < p.groups;
      if (kAhead && has_next) read(group + warps, next);
      multiply<Format, eighths>(now, slots[warp], lane);
      if (kAhead) now = next;
      if (!kAhead && has_next) read(group + warps, now);
    }
    sync_block();
    const int count = p.groups - begin < warps ? p.groups - begin : warps;
    each_product([&](const Product& product, float& sum) { add_groups<Format>(slots, count, product, sum); });
    sync_block();
  }
  each_product([&](const Product& product, float sum) { tile[product.row * kOtherStride + product.column] = sum; });
  sync_block();
  finish_tile(p.steps, p.out, tile, kOtherStride, row0, last + 1, panel0, panels);
}

}  // namespace

#define GROUPS(name, Format)                                                         \
  KERNEL_OF(linear_##name##_8, LinearGroup, 512, 2) { linear_group<Format, 1>(p); }  \
  KERNEL_OF(linear_##name##_16, LinearGroup, 512, 1) { linear_group<Format, 2>(p); } \
  KERNEL_OF(linear_##name##_32, LinearGroup, 256, 2) { linear_group<Format, 4>(p); }
GROUPS(int4g64, Int4<64>)
GROUPS(int4g32, Int4<32>)
GROUPS(int8g32, Int8G32)
GROUPS(int4a128, Affine<128>)
GROUPS(int4a256, Affine<256>)

}  // namespace infeng_cuda
