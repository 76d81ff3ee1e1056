// Segments of LoRA over random adapters: awkward ranks, ranges of rows that overlap or leave gaps, panels in steps.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>

#include "inputs.h"

inline int64_t random_rank() {
  static const int64_t ranks[] = {1, 3, 8, 16, 17, 24, 64, 256};
  return ranks[pick(0, chance(0.1) ? 7 : 6)];
}

constexpr int64_t kTailRows = 8,
                  kTailBlock = 72;  // INFENG_I8T4: rank rows stored together, their bytes in a panel of B

inline Bytes random_bytes(int64_t count) {
  Bytes made(count);
  for (int64_t j = 0; j < count; ++j) made.as<uint8_t>()[j] = uint8_t(pick(0, 255));
  return made;
}

// The half of an adapter that one op reads: A and its scaling, or B, its scales and its bias.
struct LoraHalf {
  infeng_lora_segment fields{};
  Bytes a, scaling, b, b_scale, row_scale, bias;
  infeng_lora_segment segment() const {
    const auto floats_or_null = [](const Bytes& bytes) { return bytes.size() ? bytes.as<float>() : nullptr; };
    infeng_lora_segment s = fields;
    s.a = a.size() ? a.as<void>() : nullptr;
    s.scaling = floats_or_null(scaling);
    s.b = b.size() ? b.as<void>() : nullptr;
    s.b_scale = b_scale.size() ? b_scale.as<uint16_t>() : nullptr;
    s.row_scale = floats_or_null(row_scale);
    s.bias = floats_or_null(bias);
    return s;
  }
};

// A random range [first, last) of up to `rows` rows; one row, no row or all rows occur more often than by chance.
inline void random_rows(LoraHalf& half, int64_t rows) {
  const int64_t begin = chance(0.3) ? 0 : pick(0, rows - 1);
  const int64_t end = chance(0.3) ? rows : chance(0.3) ? begin + 1 : chance(0.1) ? begin : pick(begin, rows);
  half.fields.row_begin = int32_t(begin);
  half.fields.row_end = int32_t(end);
}

// Segments sorted by their first row, each with its own columns of u. Columns in between are NaN, so that reading them
// shows.
struct LoraSegments {
  std::vector<LoraHalf> halves;
  int64_t columns = 0;
  std::vector<infeng_lora_segment> built;

  int64_t count() const { return int64_t(halves.size()); }
  bool has_tails() const {
    return std::any_of(halves.begin(), halves.end(), [](const LoraHalf& x) { return x.fields.dtype == INFENG_I8T4; });
  }
  void add(LoraHalf half, int64_t width) {
    half.fields.u_column = int32_t(columns);
    columns += width + pick(0, 3);
    halves.push_back(std::move(half));
  }
  void sort() {
    std::stable_sort(halves.begin(), halves.end(),
                     [](const LoraHalf& x, const LoraHalf& y) { return x.fields.row_begin < y.fields.row_begin; });
  }
  const infeng_lora_segment* build() {
    built.clear();
    for (const LoraHalf& half : halves) built.push_back(half.segment());
    return built.data();
  }
};

// f32 cut off to bf16.
inline Bytes upper_halves(const Bytes& values) {
  const int64_t count = values.size() / 4;
  Bytes halves(count * 2);
  for (int64_t j = 0; j < count; ++j) halves.as<uint16_t>()[j] = values.as<uint16_t>()[2 * j + 1];
  return halves;
}

// For the epilogue: parts of `panels` panels, among them the alternating ones of gate and up.
inline LoraSegments expanding(int64_t rows, int64_t panels, Bytes& u) {
  LoraSegments made;
  const bool some_have_tails = chance(0.3);
  for (int64_t i = pick(0, 6); i > 0; --i) {
    LoraHalf half;
    infeng_lora_segment& s = half.fields;
    random_rows(half, rows);
    const bool has_tails = some_have_tails && chance(0.5);
    s.rank = chance(0.1) ? 0 : int32_t(has_tails ? up(random_rank(), kTailRows) : random_rank());
    s.dtype = uint32_t(std::vector<int>{INFENG_F32, INFENG_BF16, INFENG_I8}[size_t(pick(0, 2))]);
    if (has_tails) s.dtype = INFENG_I8T4;
    s.panel_step = int32_t(chance(0.5) ? 1 : pick(2, 3));
    s.panel_begin = int32_t(chance(0.4) ? 0 : pick(0, panels - 1));
    const int64_t most = (panels - s.panel_begin + s.panel_step - 1) / s.panel_step;
    s.panel_count = int32_t(chance(0.6) ? most : pick(1, most));
    const int64_t outputs = s.panel_count * 16, values = outputs * s.rank;
    const bool integer = s.dtype == INFENG_I8;
    half.b = integer ? Bytes(values) : floats(values);
    for (int64_t j = 0; integer && j < values; ++j) half.b.as<int8_t>()[j] = int8_t(pick(-127, 127));
    if (s.dtype == INFENG_BF16) half.b = upper_halves(half.b);
    if (has_tails) half.b = random_bytes(s.panel_count * s.rank / kTailRows * kTailBlock);
    if (integer || has_tails) half.b_scale = upper_halves(floats(outputs, 0.01f));
    if (chance(0.2)) half.row_scale = floats(outputs);
    if (chance(0.2)) half.bias = floats(outputs);
    made.add(std::move(half), s.rank);
  }
  made.sort();
  u = Bytes(rows * made.columns * 4, 0xFF);
  for (const LoraHalf& half : made.halves)
    for (int64_t m = half.fields.row_begin; m < half.fields.row_end; ++m)
      for (int64_t r = 0; r < half.fields.rank; ++r)
        u.as<float>()[m * made.columns + half.fields.u_column + r] = normal();
  return made;
}

// Panels over k of `whole` rank rows, and a folded one behind them.
inline Bytes stacked(uint32_t format, int64_t whole, bool is_folded, int64_t k) {
  const Bytes first = whole > 0 ? PackedWeight(format, whole, k).data : Bytes(0);
  const Bytes last = is_folded ? PackedWeight(format, 16, up(k, 128) / 2).data : Bytes(0);
  Bytes both(first.size() + last.size());
  if (first.size()) memcpy(both.as<uint8_t>(), first.as<uint8_t>(), size_t(first.size()));
  if (last.size()) memcpy(both.as<uint8_t>(first.size()), last.as<uint8_t>(), size_t(last.size()));
  return both;
}

// The same of INFENG_I8T4: scales, which are not negative, then any bytes.
inline Bytes stacked_tails(int64_t whole, bool is_folded, int64_t k) {
  const auto panel = [](int64_t inputs) { return 64 + up(inputs, 64) / 64 * 9 * 64; };
  const int64_t all = whole / 16 * panel(k);
  Bytes made = random_bytes(all + (is_folded ? panel(up(k, 128) / 2) : 0));
  for (int64_t at = 0; at < made.size(); at += panel(k)) {
    Bytes scales = floats(16, 0.01f);
    for (int lane = 0; lane < 16; ++lane) scales.as<float>()[lane] = std::fabs(scales.as<float>()[lane]);
    memcpy(made.as<uint8_t>(at), scales.as<uint8_t>(), 64);
  }
  return made;
}

// For shrink, stored as weights of `format`, or with tails of 4 bits.
inline LoraSegments shrinking(int64_t rows, uint32_t format, int64_t k, bool has_tails = false) {
  LoraSegments made;
  for (int64_t i = pick(1, 5); i > 0; --i) {
    LoraHalf half;
    random_rows(half, rows);
    half.fields.rank = int32_t(has_tails ? up(random_rank(), kTailRows) : random_rank());
    half.fields.dtype = format == INFENG_WEIGHT_F32    ? INFENG_F32
                        : format == INFENG_WEIGHT_BF16 ? uint32_t{INFENG_BF16}
                                                       : uint32_t{INFENG_I8};
    half.fields.weight = chance(0.5) ? 1.0f : normal();
    const int64_t padded = up(half.fields.rank, 16), whole = up(half.fields.rank - 8, 16);
    if (has_tails) half.fields.dtype = INFENG_I8T4;
    half.a = has_tails ? stacked_tails(whole, padded > whole, k) : stacked(format, whole, padded > whole, k);
    half.scaling = floats(padded);
    made.add(std::move(half), padded);
  }
  made.sort();
  return made;
}
