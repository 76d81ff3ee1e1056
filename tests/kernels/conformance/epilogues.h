// Epilogue lists over random operands, and what the state of every op has in common. SPDX-License-Identifier:
// Apache-2.0
#pragma once

#include "lora.h"
#include "runner.h"

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
  std::vector<infeng_epilogue> built;

  List() = default;
  List(std::vector<uint32_t> k, int64_t rows_, int64_t columns_) : kinds(std::move(k)), rows(rows_), columns(columns_) {
    int64_t width = columns;
    for (uint32_t kind : kinds) {
      if (kind == INFENG_EPILOGUE_SILU_MUL) width /= 2;
      if (kind == INFENG_EPILOGUE_QUANTIZE) act = Activation(rows, width);
      if (kind == INFENG_EPILOGUE_LORA) segments = expanding(rows, up(width, 16) / 16, u);
    }
    bias = floats(columns);
    scale = floats(columns);
    residual = floats(rows * width);
  }
  uint32_t mask() const { return mask_of(kinds); }
  int64_t width() const { return mask() & INFENG_EPILOGUE_BIT(INFENG_EPILOGUE_SILU_MUL) ? columns / 2 : columns; }
  const infeng_epilogue* build() {
    built.clear();
    int64_t now = columns;
    for (uint32_t kind : kinds) {
      infeng_epilogue e{};
      e.struct_size = sizeof e;
      e.kind = kind;
      if (kind == INFENG_EPILOGUE_SILU_MUL) now /= 2;
      if (kind == INFENG_EPILOGUE_BIAS) e.operand = vector_view(bias, now);
      if (kind == INFENG_EPILOGUE_ROW_SCALE) e.operand = vector_view(scale, now);
      if (kind == INFENG_EPILOGUE_RESIDUAL) e.operand = matrix(residual, INFENG_F32, rows, width(), width());
      if (kind == INFENG_EPILOGUE_QUANTIZE) e.act = act.view();
      if (kind == INFENG_EPILOGUE_LORA) {
        e.operand = matrix(u, INFENG_F32, rows, segments.columns, segments.columns);
        e.segments = segments.build();
        e.segment_count = int32_t(segments.count());
        e.segment_stride = sizeof *e.segments;
      }
      built.push_back(e);
    }
    return built.data();
  }
};

inline const std::vector<std::vector<uint32_t>>& lists() {
  constexpr uint32_t B = INFENG_EPILOGUE_BIAS, L = INFENG_EPILOGUE_LORA, S = INFENG_EPILOGUE_ROW_SCALE,
                     R = INFENG_EPILOGUE_RESIDUAL, U = INFENG_EPILOGUE_SILU_MUL, Q = INFENG_EPILOGUE_QUANTIZE;
  static const std::vector<std::vector<uint32_t>> all = {
      {},        {B},          {R},    {B, R},       {U},       {U, Q},   {B, U, Q}, {Q},
      {B, Q},    {S, B, R, Q}, {S},    {S, U, R, Q}, {R, Q},    {L},      {L, B},    {L, R},
      {L, U, Q}, {L, B, U, Q}, {L, Q}, {L, B, R, Q}, {B, L, R}, {U, L, Q}};
  return all;
}

template <class Args>
struct State {
  Args a{};
  List list;
  const infeng_args& finish(int64_t rows) {
    a.common.struct_size = sizeof a;
    a.common.rows = rows;
    a.common.epilogue_count = uint32_t(list.kinds.size());
    a.common.epilogues = list.build();
    return a.common;
  }
};
