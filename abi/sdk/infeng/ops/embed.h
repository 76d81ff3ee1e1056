// embed: out[m] = row ids[m] of the weight, widened to f32. A row is one lane of a panel; a tile is one row.
//   f32, bf16: the weight;  int8-row: float(q) * scale[n];  int4: float(q) * float(scale of the group)
//   sub-scales: float(s (u - z)) * d[n];  with minima: d * float(s u) - e * float(t)
// SPDX-License-Identifier: Apache-2.0
#ifndef INFENG_OPS_EMBED_H
#define INFENG_OPS_EMBED_H

#include <infeng/ops/weights.h>

namespace infeng {
namespace {

struct LaneF32 {
  static constexpr uint32_t kFormat = INFENG_WEIGHT_F32;
  template <Vector V>
  static void read(const uint8_t* panel, int lane, int64_t k, float* out) {
    const float* w = (const float*)panel + lane;
    for (int64_t i = 0; i < k; ++i) out[i] = w[i * kLanes];
  }
};

struct LaneBf16 {
  static constexpr uint32_t kFormat = INFENG_WEIGHT_BF16;
  template <Vector V>
  static void read(const uint8_t* panel, int lane, int64_t k, float* out) {
    const uint16_t* w = (const uint16_t*)panel + 2 * lane;
    for (int64_t i = 0; i < k; ++i) {
      const uint32_t bits = uint32_t(w[i / 2 * (2 * kLanes) + i % 2]) << 16;
      __builtin_memcpy(out + i, &bits, 4);
    }
  }
};

template <class Format>
struct LaneInt {
  static constexpr uint32_t kFormat = Format::kFormat;

  template <Vector V>
  static void read(const uint8_t* panel, int lane, int64_t k, float* out) {
    for (int64_t g = 0; g * kGroup < k; ++g) {
      alignas(64) float scale[Format::kSteps][kLanes];
      for (int s = 0; s < Format::kSteps; ++s) V::store(scale[s], Format::template scale<V>(panel, g, s));
      const uint8_t* lines = panel + Format::lines_at(g) + 4 * lane;
      const int n = int(min_of(kGroup, k - g * kGroup));
      for (int i = 0; i < n; ++i)
        out[g * kGroup + i] = float(weight(lines, i)) * scale[i * Format::kSteps / kGroup][lane];
    }
  }

 private:
  // Input i of a group's 64; `lines` points to the first byte of the output.
  static INFENG_INLINE int weight(const uint8_t* lines, int i) {
    if constexpr (Format::kBits == 8) {
      return lines[i / 4 * kLine + i % 4] - 128;
    } else {
      constexpr int kStep = 8 * Format::kStepLines;  // inputs per step
      const int step = i / kStep, line = i % kStep / 4 % Format::kStepLines;
      const bool above = i % kStep / 4 >= Format::kStepLines;
      const uint8_t byte = lines[(step * Format::kStepLines + line) * kLine + i % 4];
      return (above ? byte >> 4 : byte & 15) - 8;
    }
  }
};

template <class Format>
struct LaneP32 {
  static constexpr uint32_t kFormat = Format::kFormat;

  template <Vector V>
  static void read(const uint8_t* panel, int lane, int64_t k, float* out) {
    float d;
    __builtin_memcpy(&d, panel + lane * sizeof d, sizeof d);
    for (int64_t i = 0; i < k; ++i) {
      const int64_t g = i / kGroup;
      const int half = int(i % kGroup / 32), shift = 8 - Format::kBits;
      const uint8_t byte = panel[Format::scales_at(g) + 4 * lane + 2 * half + g % 2];
      const int s = (byte & ((1 << shift) - 1)) + 1, z = byte >> shift;
      const uint8_t* lines = panel + Format::lines_at(g) + half * Format::kBits * kLine + 4 * lane;
      out[i] = float(s * (unit(lines, int(i % 32)) - z)) * d;
    }
  }

 private:
  // Input k of 32; `lines` points to the first byte of the output.
  static INFENG_INLINE int unit(const uint8_t* lines, int k) {
    const int l = k / 4, nibble = lines[l % 4 * kLine + k % 4] >> (l < 4 ? 0 : 4) & 15;
    if constexpr (Format::kBits == 4) return nibble;
    if constexpr (Format::kBits == 5) return nibble | (lines[4 * kLine + k % 4] >> l & 1) << 4;
    return nibble | (lines[(4 + l / 4) * kLine + k % 4] >> 2 * (l % 4) & 3) << 4;
  }
};

// Both products are exact: a half has 11 bits, the integers at most 12.
template <class Format>
struct LaneAffine {
  static constexpr uint32_t kFormat = Format::kFormat;

  template <Vector V>
  static void read(const uint8_t* panel, int lane, int64_t k, float* out) {
    alignas(64) float d[kLanes], e[kLanes];
    for (int64_t i = 0; i < k; ++i) {
      const int64_t g = i / kGroup;
      const int half = int(i % kGroup / 32), line = int(i % 32 / 4);
      if (i % kGroup == 0 && Format::kPanel.begins(g)) {
        const uint16_t* halves = (const uint16_t*)(panel + Format::kPanel.superblock_at(g));
        V::store(d, V::load_f16(halves));
        V::store(e, V::load_f16(halves + kLanes));
      }
      const uint8_t* scales = panel + Format::kPanel.scales_at(g) + 4 * lane + half;
      const uint8_t* lines = panel + Format::kPanel.lines_at(g) + half * (4 * kLine) + 4 * lane;
      const int unit = lines[line % 4 * kLine + i % 4] >> (line < 4 ? 0 : 4) & 15;
      out[i] = d[lane] * float(scales[0] * unit) - e[lane] * float(scales[2]);
    }
  }
};

template <Vector V, class Lane>
struct Embed {
  static constexpr uint32_t kOp = INFENG_OP_EMBED;
  static constexpr uint32_t kFuses = 0;

  static int32_t accepts(const infeng_problem* p) {
    return p->op == kOp && p->weight_format == Lane::kFormat && p->epilogue_count == 0;
  }

  static int64_t tiles(const infeng_args* args, int32_t) { return args->rows; }

  static infeng_status run(const infeng_args* common, int32_t, int64_t first, int64_t last, infeng_worker* worker) {
    const auto& args = *(const infeng_embed_args*)common;
    const infeng_weight& weight = *args.weight;
    if (weight.format != Lane::kFormat || weight.layout != 0)
      return fail(worker, INFENG_INVALID_ARGUMENT, "weight has another format or layout");
    for (int64_t row = first; row < last; ++row) {
      const int64_t id = args.ids[row];
      if (id < 0 || id >= weight.n)
        return fail(worker, INFENG_INVALID_ARGUMENT, "token id lies outside the vocabulary");
      const uint8_t* panel = (const uint8_t*)weight.data + id / kLanes * weight.panel_bytes;
      Lane::template read<V>(panel, int(id % kLanes), weight.k, row_of<float>(args.out, row));
    }
    return INFENG_OK;
  }
};

}  // namespace
}  // namespace infeng
#endif  // INFENG_OPS_EMBED_H
