// quantize(x[0 .. count)): one scale for all values, q in [-127, 127], as docs/numerics.md defines it.
//   amax = max |x|;  amax < 2^-100: q = 0, scale = 0;  else scale = amax / 127, q = rne(x * (127 / amax)), clamped
// quantize_wide rotates 64 columns at a time first, y = H (x / 8), if the activation is rotated (ops/hadamard.h);
// quantize_row rotates blocks of 64, 128 or 256.
// quantize_int4 and quantize_e4m3 serve the KV cache.
// SPDX-License-Identifier: Apache-2.0
#ifndef INFENG_OPS_QUANTIZE_H
#define INFENG_OPS_QUANTIZE_H

#include <infeng/ops/args.h>
#include <infeng/ops/hadamard.h>

namespace infeng {
namespace {

struct Quantized {
  float scale;
  int32_t sum;  // of q
};

template <Vector V>
INFENG_INLINE float largest_magnitude(const float* x, int count) {
  auto largest = V::zero();
  for (int c = 0; c < count; c += kLanes) largest = V::max(largest, V::abs(V::load(x + c, count - c)));
  return V::max_lanes(largest);
}

// Writes q[0 .. padded), a multiple of 16, under the scale of `amax`; q is 0 from count on.
template <Vector V>
INFENG_INLINE Quantized quantize(const float* x, int count, float amax, int8_t* q, int padded) {
  if (amax < 0x1p-100f) {
    for (int c = 0; c < padded; c += kLanes) V::store_i8(q + c, V::iset(0));
    return {0.0f, 0};
  }
  const auto inverse = V::set(127.0f / amax);
  auto sum = V::iset(0);
  for (int c = 0; c < padded; c += kLanes) {
    auto v = V::rne(V::mul(V::load(x + c, count - c), inverse));
    v = V::imax(V::imin(v, V::iset(127)), V::iset(-127));
    V::store_i8(q + c, v);
    sum = V::iadd(sum, v);
  }
  return {amax / 127.0f, V::isum(sum)};
}

template <Vector V>
INFENG_INLINE Quantized quantize(const float* x, int count, int8_t* q, int padded) {
  return quantize<V>(x, count, largest_magnitude<V>(x, count), q, padded);
}

// Writes 4-bit codes q + 8 to q[0 .. padded) under one scale; codes are 8 from count on. Returns the scale.
template <Vector V>
INFENG_INLINE float quantize_int4(const float* x, int count, int8_t* q, int padded) {
  auto high = V::zero(), low = V::zero();
  for (int c = 0; c < count; c += kLanes) {
    const auto v = V::load(x + c, count - c);
    high = V::max(high, v);
    low = V::max(low, V::sub(V::zero(), v));
  }
  const float most = V::max_lanes(high), least = V::max_lanes(low);
  const float extreme = most > least ? most : -least;
  if (__builtin_fabsf(extreme) < 0x1p-100f) {
    for (int c = 0; c < padded; c += kLanes) V::store_i8(q + c, V::iset(8));
    return 0.0f;
  }
  const auto inverse = V::set(-8.0f / extreme);
  for (int c = 0; c < padded; c += kLanes) {
    const auto v = V::rne(V::mul(V::load(x + c, count - c), inverse));
    V::store_i8(q + c, V::iadd(V::imax(V::imin(v, V::iset(7)), V::iset(-8)), V::iset(8)));
  }
  return extreme / -8.0f;
}

// The code of the e4m3 number nearest to 256 * value, ties to an even code; |value| <= 1.75.
INFENG_INLINE uint8_t e4m3_code(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, 4);
  const uint32_t sign = bits >> 24 & 0x80u, magnitude = bits & 0x7fffffffu;
  const uint32_t normal = ((magnitude + 0x7ffffu + (magnitude >> 20 & 1u)) >> 20) - (112u << 3);
  const auto small = uint32_t(int32_t(__builtin_rintf(__builtin_fabsf(value) * 0x1p17f)));  // a multiple of 2^-17
  return uint8_t(sign | (magnitude < 0x38800000u ? small : normal));
}

// Writes code[0 .. count) as e4m3 under one scale. Returns the scale.
template <Vector V>
INFENG_INLINE float quantize_e4m3(const float* x, int count, uint8_t* code) {
  auto largest = V::zero();
  for (int c = 0; c < count; c += kLanes) largest = V::max(largest, V::abs(V::load(x + c, count - c)));
  const float amax = V::max_lanes(largest);
  if (amax < 0x1p-100f) {
    for (int c = 0; c < count; ++c) code[c] = 0;
    return 0.0f;
  }
  const auto inverse = V::set(1.75f / amax);
  for (int c = 0; c < count; c += kLanes) {
    alignas(64) float value[kLanes];
    V::store(value, V::max(V::min(V::mul(V::load(x + c, count - c), inverse), V::set(1.75f)), V::set(-1.75f)));
    for (int i = 0; i < kLanes && c + i < count; ++i) code[c + i] = e4m3_code(value[i]);
  }
  return amax / 1.75f;
}

// Quantizes columns [column, column + width) of one row in groups of 64; `column` is a multiple of 64.
template <Vector V>
INFENG_INLINE void quantize_columns(const infeng_activation& act, int64_t row, int64_t column, const float* x,
                                    int64_t width) {
  int8_t* q = row_of<int8_t>(act.q, row) + column;
  float* scale = row_of<float>(act.scale, row) + column / kGroup;
  int32_t* sum = row_of<int32_t>(act.sum, row) + column / kGroup;
  for (int64_t c = 0; c < width; c += kGroup) {
    const Quantized r = quantize<V>(x + c, int(min_of(width - c, kGroup)), q + c, kGroup);
    *scale++ = r.scale;
    *sum++ = r.sum;
  }
}

// The same in the activation's groups, rotated if the activation is; `column` is a multiple of the group.
template <Vector V>
INFENG_NOINLINE void quantize_wide(const infeng_activation& act, int64_t row, int64_t column, const float* x,
                                   int64_t width) {
  int8_t* q = row_of<int8_t>(act.q, row) + column;
  float* scale = row_of<float>(act.scale, row) + column / kGroup;
  int32_t* sum = row_of<int32_t>(act.sum, row) + column / kGroup;
  alignas(64) float rotated[kWidestGroup];
  for (int64_t begin = 0; begin < width; begin += act.group) {
    const int count = int(min_of(width - begin, act.group));
    const float* from = x + begin;
    if (act.rotated) {
      for (int c = 0; c < count; c += kGroup) hadamard<V>(from + c, kGroup, 0.125f, rotated + c);
      from = rotated;
    }
    const float amax = largest_magnitude<V>(from, count);
    for (int c = 0; c < count; c += kGroup) {
      const Quantized r = quantize<V>(from + c, int(min_of(count - c, kGroup)), amax, q + begin + c, kGroup);
      *scale++ = r.scale;
      *sum++ = r.sum;
    }
  }
}

// Quantizes a row of k columns under one scale. x has room for k rounded up to 16; if the activation is rotated, so is
// x.
template <Vector V>
INFENG_NOINLINE void quantize_row(const infeng_activation& act, int64_t row, float* x, int64_t k) {
  const int block = int(act.rotated);
  auto largest = V::zero();
  if (block) {
    const float factor = block == 256 ? 0.0625f : 0.125f;
    for (int64_t c = 0; c < k; c += block) hadamard<V>(x + c, block, factor, x + c);
  }
  for (int64_t c = 0; c < k; c += kLanes) largest = V::max(largest, V::abs(V::load(x + c, int(min_of(k - c, kLanes)))));
  const float amax = V::max_lanes(largest);
  int8_t* q = row_of<int8_t>(act.q, row);
  float* scale = row_of<float>(act.scale, row);
  int32_t* sum = row_of<int32_t>(act.sum, row);
  for (int64_t c = 0; c < k; c += kGroup) {
    const Quantized r = quantize<V>(x + c, int(min_of(k - c, kGroup)), amax, q + c, kGroup);
    *scale++ = r.scale;
    *sum++ = r.sum;
  }
}

// Scratch memory of an op whose list quantizes whole rows of up to n values: a row, and behind it its rotation.
INFENG_INLINE int64_t row_stride(int64_t n) { return round_up(n, kLanes); }
INFENG_INLINE infeng_status row_workspace(const infeng_problem* problem, infeng_workspace* out) {
  out->align = kLine;
  out->shared = 0;
  out->per_worker = has_row(*problem) ? 2 * row_stride(problem->n) * int64_t(sizeof(float)) : 0;
  return INFENG_OK;
}

// Applies the steps of a list of QUANTIZE to columns [column, column + width) of row `row`, which start a widest group
// and are padded to lanes. `kept` takes them for steps that quantize whole rows.
template <Vector V>
INFENG_INLINE void quantize_part(const infeng_args& args, int64_t row, int64_t column, int width, const float* y,
                                 float* kept) {
  for (uint32_t i = 0; i < args.epilogue_count; ++i) {
    const infeng_epilogue& e = *args.epilogues[i];
    if (is_row(e))
      for (int c = 0; c < width; c += kLanes) V::store(kept + column + c, V::load(y + c));
    else if (is_wide(e))
      quantize_wide<V>(act_of(&e), row, column, y, width);
    else
      quantize_columns<V>(act_of(&e), row, column, y, width);
  }
}

// Applies the steps of a list that quantize whole rows to the k values of row `row`, which lie in scratch memory for
// rows of up to n values. The last step may rotate them in place.
template <Vector V>
INFENG_INLINE void quantize_rows(const infeng_args& args, int64_t row, int64_t k, int64_t n, float* kept) {
  for (uint32_t i = 0; i < args.epilogue_count; ++i) {
    if (!is_row(*args.epilogues[i])) continue;
    float* x = kept;
    if (i + 1 < args.epilogue_count) {
      x += row_stride(n);
      for (int64_t c = 0; c < k; c += kLanes) V::store(x + c, V::load(kept + c));
    }
    quantize_row<V>(act_of(args.epilogues[i]), row, x, k);
  }
}

// Writes the k values of row `row` of an op whose list is of QUANTIZE alone: value(c, n) is columns [c, c + 16), n of
// which exist. `out` may be NULL, or the row that `value` reads: 256 columns are read before they are written.
template <Vector V, class Value>
INFENG_INLINE void finish_columns(const infeng_args& args, int64_t row, int64_t k, const Value& value, float* out,
                                  float* kept) {
  for (int64_t column = 0; column < k; column += kWidestGroup) {
    const int width = int(min_of(kWidestGroup, k - column));
    alignas(64) float y[kWidestGroup];
    for (int c = 0; c < width; c += kLanes) V::store(y + c, value(column + c, width - c));
    quantize_part<V>(args, row, column, width, y, kept);
    for (int c = 0; out && c < width; c += kLanes) V::store(out + column + c, V::load(y + c), width - c);
  }
  quantize_rows<V>(args, row, k, k, kept);
}

}  // namespace
}  // namespace infeng
#endif  // INFENG_OPS_QUANTIZE_H
