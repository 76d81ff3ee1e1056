// Epilogue lists over random operands, and the common state of all ops.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lora.h"
#include "runner.h"

// The headers of a list, in the form of a problem.
struct Headers {
  std::vector<infeng_epilogue> steps;
  std::vector<const infeng_epilogue*> pointers;
  explicit Headers(const std::vector<uint32_t>& kinds, uint32_t rounding) {
    for (uint32_t kind : kinds) steps.push_back(header_of(kind, sizeof(infeng_epilogue), rounding));
    for (const infeng_epilogue& step : steps) pointers.push_back(&step);
  }
  static bool has_function(uint32_t kind) {
    return kind == INFENG_EPILOGUE_GATED_MUL || kind == INFENG_EPILOGUE_ACTIVATE;
  }
  static infeng_epilogue header_of(uint32_t kind, size_t size, uint32_t rounding = INFENG_FUNCTION_IDENTITY) {
    infeng_epilogue head{};
    head.struct_size = uint32_t(size);
    head.kind = kind;
    if (has_function(kind)) head.function = INFENG_FUNCTION_SILU;
    if (kind == INFENG_EPILOGUE_QUANTIZE) head.function = rounding;
    if (kind == INFENG_EPILOGUE_SCALE || kind == INFENG_EPILOGUE_SOFTCAP) head.scalar = 1.5f;
    return head;
  }
};

// Adds a list and its needs to a problem; the headers live as long as the process. `rounding`: the function of
// QUANTIZE. `has_tails`: adapters are stored in INFENG_I8T4 too, which older kernels do not know.
inline void ask(infeng_problem& p, const std::vector<uint32_t>& kinds, uint32_t rounding = INFENG_FUNCTION_IDENTITY,
                bool has_tails = false) {
  static std::vector<std::unique_ptr<Headers>> all;
  all.push_back(std::make_unique<Headers>(kinds, rounding));
  p.epilogue_count = uint32_t(kinds.size());
  p.epilogues = all.back()->pointers.data();
  for (uint32_t kind : kinds) {
    if (kind == INFENG_EPILOGUE_QUANTIZE && rounding != INFENG_FUNCTION_IDENTITY)
      p.needs |= INFENG_NEED_BIT(INFENG_NEED_FUNCTION(rounding));
    if (Headers::has_function(kind)) p.needs |= INFENG_NEED_BIT(INFENG_NEED_FUNCTION(INFENG_FUNCTION_SILU));
    if (kind == INFENG_EPILOGUE_LORA)
      p.needs |= INFENG_NEED_BIT(INFENG_NEED_LORA_F32) | INFENG_NEED_BIT(INFENG_NEED_LORA_BF16) |
                 INFENG_NEED_BIT(INFENG_NEED_LORA_I8) | (has_tails ? INFENG_NEED_BIT(INFENG_NEED_LORA_I8T4) : 0);
  }
}

inline uint32_t mask_of(const std::vector<uint32_t>& kinds) {
  uint32_t mask = 0;
  for (uint32_t kind : kinds) mask |= INFENG_EPILOGUE_BIT(kind);
  return mask;
}

struct List {
  std::vector<uint32_t> kinds;
  int64_t rows = 0, columns = 0;  // of the op's result
  Bytes bias, scale, residual, u;
  Activation act;
  LoraSegments segments;
  union Step {
    infeng_epilogue head;
    infeng_operand_epilogue operand;
    infeng_quantize_epilogue quantize;
    infeng_lora_epilogue lora;
  };
  infeng_activation act_view{};
  std::vector<Step> built;
  std::vector<const infeng_epilogue*> pointers;

  uint32_t rounding() const {
    if (act.group == INFENG_GROUP_ROW) return INFENG_FUNCTION_ROW;
    return act.group != 64 || act.rotated ? INFENG_FUNCTION_WIDE : INFENG_FUNCTION_IDENTITY;
  }

  List() = default;
  List(std::vector<uint32_t> k, int64_t rows_, int64_t columns_, int64_t group = 64, bool rotated = false)
      : kinds(std::move(k)), rows(rows_), columns(columns_) {
    int64_t width = columns;
    for (uint32_t kind : kinds) {
      if (kind == INFENG_EPILOGUE_GATED_MUL) width /= 2;
      if (kind == INFENG_EPILOGUE_QUANTIZE) act = Activation(rows, width, group, rotated);
      if (kind == INFENG_EPILOGUE_LORA) segments = expanding(rows, up(width, 16) / 16, u);
    }
    bias = floats(columns);
    scale = floats(columns);
    residual = floats(rows * width);
  }
  uint32_t mask() const { return mask_of(kinds); }
  int64_t width() const { return mask() & INFENG_EPILOGUE_BIT(INFENG_EPILOGUE_GATED_MUL) ? columns / 2 : columns; }
  const infeng_epilogue* const* build() {
    built.assign(kinds.size(), Step{});
    pointers.clear();
    int64_t now = columns;
    for (size_t i = 0; i < kinds.size(); ++i) {
      const uint32_t kind = kinds[i];
      Step& e = built[i];
      e.head = Headers::header_of(kind, sizeof(infeng_epilogue));
      if (kind == INFENG_EPILOGUE_GATED_MUL) now /= 2;
      if (kind == INFENG_EPILOGUE_BIAS) e.operand = {operand_head(kind), vector_view(bias, now)};
      if (kind == INFENG_EPILOGUE_ROW_SCALE) e.operand = {operand_head(kind), vector_view(scale, now)};
      if (kind == INFENG_EPILOGUE_RESIDUAL)
        e.operand = {operand_head(kind), matrix(residual, INFENG_F32, rows, width(), width())};
      if (kind == INFENG_EPILOGUE_QUANTIZE) {
        act_view = act.view();
        e.quantize = {Headers::header_of(kind, sizeof e.quantize, rounding()), &act_view};
      }
      if (kind == INFENG_EPILOGUE_LORA)
        e.lora = {Headers::header_of(kind, sizeof e.lora),
                  matrix(u, INFENG_F32, rows, segments.columns, segments.columns), segments.build(),
                  int32_t(segments.count()), sizeof(infeng_lora_segment)};
      pointers.push_back(&e.head);
    }
    return pointers.data();
  }

 private:
  static infeng_epilogue operand_head(uint32_t kind) {
    return Headers::header_of(kind, sizeof(infeng_operand_epilogue));
  }
};

inline const std::vector<std::vector<uint32_t>>& lists() {
  constexpr uint32_t B = INFENG_EPILOGUE_BIAS, L = INFENG_EPILOGUE_LORA, S = INFENG_EPILOGUE_ROW_SCALE,
                     R = INFENG_EPILOGUE_RESIDUAL, U = INFENG_EPILOGUE_GATED_MUL, Q = INFENG_EPILOGUE_QUANTIZE,
                     A = INFENG_EPILOGUE_SCALE, C = INFENG_EPILOGUE_SOFTCAP, F = INFENG_EPILOGUE_ACTIVATE;
  static const std::vector<std::vector<uint32_t>> all = {
      {},           {B},          {R},          {B, R},    {U},          {U, Q}, {B, U, Q}, {Q},       {B, Q},
      {S, B, R, Q}, {S},          {S, U, R, Q}, {R, Q},    {L},          {L, B}, {L, R},    {L, U, Q}, {L, B, U, Q},
      {L, Q},       {L, B, R, Q}, {B, L, R},    {U, L, Q}, {B, A, R, Q}, {A, C}, {B, F, Q}, {L, F}};
  return all;
}

template <class Args>
struct State {
  Args a{};
  List list;
  infeng_args& finish(int64_t rows) {
    a.common.struct_size = sizeof a;
    a.common.rows = rows;
    a.common.epilogue_count = uint32_t(list.kinds.size());
    a.common.epilogues = list.build();
    return a.common;
  }
};
