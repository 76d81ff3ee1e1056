// The B half of LoRA, an epilogue step: for each segment that covers a row and an output, in order,
//   f32, bf16 B:  cur = fma(u[r], B[n][r], cur), r ascending
//   int8 B:       t = fma(u[r], B[n][r], t) from +0;  cur = fma(t, b_scale[n], cur), b_scale in bf16; the same where
//                 all rank rows but every eighth are stored in 4 bits
//   and then, if the segment has them:  cur *= row_scale[n];  cur += bias[n]
// A line of B is widened once for up to six rows. SPDX-License-Identifier: Apache-2.0
#ifndef INFENG_OPS_LORA_H
#define INFENG_OPS_LORA_H

#include <infeng/ops/args.h>
#include <infeng/ops/tails.h>

namespace infeng {
namespace {

INFENG_INLINE const infeng_lora_segment* segment_at(const infeng_lora_segment* first, uint32_t stride, int64_t index) {
  return (const infeng_lora_segment*)((const char*)first + int64_t(stride) * index);
}

// The storage of B: bytes of rank row r of a panel and of `rank` rows, loading 16 values of row r as floats, and
// whether its sum is computed before it is added.
struct LoraF32 {
  static constexpr bool kApart = false;
  static constexpr int64_t row_bytes(int64_t) { return 4 * kLanes; }
  static constexpr int64_t bytes(int64_t rank) { return 4 * kLanes * rank; }
  template <Vector V>
  static INFENG_INLINE auto load(const uint8_t* b, int64_t) {
    return V::load((const float*)b);
  }
};
struct LoraBf16 {
  static constexpr bool kApart = false;
  static constexpr int64_t row_bytes(int64_t) { return 2 * kLanes; }
  static constexpr int64_t bytes(int64_t rank) { return 2 * kLanes * rank; }
  template <Vector V>
  static INFENG_INLINE auto load(const uint8_t* b, int64_t) {
    return V::load_bf16((const uint16_t*)b);
  }
};
struct LoraI8 {
  static constexpr bool kApart = true;
  static constexpr int64_t row_bytes(int64_t) { return kLanes; }
  static constexpr int64_t bytes(int64_t rank) { return kLanes * rank; }
  template <Vector V>
  static INFENG_INLINE auto load(const uint8_t* b, int64_t) {
    return V::load_i8((const int8_t*)b);
  }
};

// Blocks of 8 rank rows: one in 8 bits, 7 in 4 bits.
struct LoraI8T4 {
  static constexpr bool kApart = true;
  static constexpr int64_t row_bytes(int64_t r) { return r % kTailRows ? kLanes / 2 : kLanes; }
  static constexpr int64_t bytes(int64_t rank) { return rank / kTailRows * (kLanes + (kTailRows - 1) * kLanes / 2); }
  template <Vector V>
  static INFENG_INLINE auto load(const uint8_t* b, int64_t r) {
    return r % kTailRows ? V::load_i4(b) : V::load_i8((const int8_t*)b);
  }
};

// Bytes of a panel of B.
INFENG_INLINE int64_t lora_bytes(const infeng_lora_segment& s) {
  if (s.dtype == INFENG_I8T4) return LoraI8T4::bytes(s.rank);
  return s.dtype == INFENG_F32    ? LoraF32::bytes(s.rank)
         : s.dtype == INFENG_BF16 ? LoraBf16::bytes(s.rank)
                                  : LoraI8::bytes(s.rank);
}

// The part of a segment in one block of the current matrix.
struct LoraBlock {
  const infeng_lora_segment& segment;
  int64_t first;  // of the segment's panels
  int64_t count;
  const float* u;  // of the first row, at the segment's first column
  int64_t u_stride;
  float* cur;  // of the first row, at the first panel
  int64_t stride;
  int64_t rows;
};

// The segment's panels [first, first + count) that lie in panels [begin, begin + panels) of the current matrix.
struct LoraPanels {
  int64_t first;
  int64_t count;
  INFENG_INLINE LoraPanels(const infeng_lora_segment& s, int64_t begin, int64_t panels) {
    const int64_t before = begin - s.panel_begin;
    first = steps(before, s.panel_step);
    count = min_of(steps(before + panels, s.panel_step), s.panel_count) - first;
  }

 private:
  // The segment's panels before panel `distance` from its first. Divisions are slow, and a step is 1 or 2.
  static INFENG_INLINE int64_t steps(int64_t distance, int32_t step) {
    if (distance <= 0) return 0;
    return step == 1 ? distance : step == 2 ? (distance + 1) / 2 : ceil_div(distance, step);
  }
};

template <Vector V, class B, int M, int P>
INFENG_NOINLINE void lora_rows(const LoraBlock& block, int64_t panel, int64_t row) {
  using F = typename V::F;
  const infeng_lora_segment& s = block.segment;
  const int64_t rank = s.rank, bytes = B::bytes(rank), step = int64_t(s.panel_step) * kLanes;
  const uint8_t* b = (const uint8_t*)s.b + (block.first + panel) * bytes;
  float* cur = block.cur + row * block.stride + panel * step;
  const float* u[M];
  F sum[M][P];
  INFENG_EACH (m, M) {
    u[m] = block.u + (row + m) * block.u_stride;
    INFENG_EACH (p, P) sum[m][p] = B::kApart ? V::zero() : V::load(cur + m * block.stride + p * step);
  }
  for (int64_t r = 0; r < rank; b += B::row_bytes(r), ++r) {
    F w[P];
    INFENG_EACH (p, P) w[p] = B::template load<V>(b + p * bytes, r);
    INFENG_EACH (m, M) {
      const F x = V::set(u[m][r]);
      INFENG_EACH (p, P) sum[m][p] = V::fma(x, w[p], sum[m][p]);
    }
  }
  const int64_t n = (block.first + panel) * kLanes;
  INFENG_EACH (p, P) {
    if constexpr (B::kApart) {
      const F scale = V::load_bf16(s.b_scale + n + p * kLanes);
      INFENG_EACH (m, M) sum[m][p] = V::fma(sum[m][p], scale, V::load(cur + m * block.stride + p * step));
    }
    if (s.row_scale) {
      const F scale = V::load(s.row_scale + n + p * kLanes);
      INFENG_EACH (m, M) sum[m][p] = V::mul(sum[m][p], scale);
    }
    if (s.bias) {
      const F bias = V::load(s.bias + n + p * kLanes);
      INFENG_EACH (m, M) sum[m][p] = V::add(sum[m][p], bias);
    }
    INFENG_EACH (m, M) V::store(cur + m * block.stride + p * step, sum[m][p]);
  }
}

template <Vector V, class B>
INFENG_NOINLINE void lora_block(const LoraBlock& block) {
  for_panels<V::kColumns>(block.count, [&](int64_t p, auto count) {
    if (block.rows == 1) return lora_rows<V, B, 1, count.value>(block, p, 0);
    balanced_blocks<6>(int(block.rows),
                       [&](int m, auto rows) { lora_rows<V, B, rows.value, count.value>(block, p, m); });
  });
}

// Applies a list's segments to rows [row, row + rows) and `width` columns from `column` on, both multiples of 16.
template <Vector V>
INFENG_NOINLINE void add_lora(const infeng_lora_epilogue& e, int64_t row, int64_t rows, int64_t column, int64_t width,
                              float* cur, int64_t stride) {
  const int64_t begin = column / kLanes;
  for (int32_t i = 0; i < e.segment_count; ++i) {
    const infeng_lora_segment& s = *segment_at(e.segments, e.segment_stride, i);
    const int64_t from = max_of(row, s.row_begin), count = min_of(row + rows, s.row_end) - from;
    if (count <= 0) continue;
    const LoraPanels panels(s, begin, width / kLanes);
    if (panels.count <= 0) continue;
    const int64_t at = s.panel_begin + panels.first * s.panel_step - begin;
    const float* u = s.rank > 0 ? row_of<float>(e.u, from) + s.u_column : nullptr;
    const LoraBlock block{
        s, panels.first, panels.count, u, e.u.strides[0], cur + (from - row) * stride + at * kLanes, stride, count};
    if (s.dtype == INFENG_F32 || s.rank == 0)  // an empty sum leaves cur unchanged
      lora_block<V, LoraF32>(block);
    else if (s.dtype == INFENG_BF16)
      lora_block<V, LoraBf16>(block);
    else if (s.dtype == INFENG_I8T4)
      lora_block<V, LoraI8T4>(block);
    else
      lora_block<V, LoraI8>(block);
  }
}

}  // namespace
}  // namespace infeng
#endif  // INFENG_OPS_LORA_H
