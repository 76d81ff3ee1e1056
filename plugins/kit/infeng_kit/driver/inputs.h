// Random activations and packed weights. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>

#include "memory.h"

// int8 rows with scales and sums; extreme groups test the limits of narrower arithmetic.
struct Activation {
  int64_t rows, k, groups;
  int64_t group;    // inputs that share a scale
  int64_t rotated;  // inputs of a block; 0: not rotated
  Bytes q, scale, sum;
  explicit Activation(int64_t rows_ = 0, int64_t k_ = 0, int64_t group_ = 64, bool rotated_ = false)
      : rows(rows_),
        k(k_),
        groups(up(k_, 64) / 64),
        group(group_),
        rotated(rotated_ && k_ % 64 == 0 ? block_of(k_, group_) : 0),
        q(rows * groups * 64, 0x55),
        scale(rows * groups * 4, 0x55),
        sum(rows * groups * 4, 0x55) {}
  void randomize() {
    for (int64_t m = 0; m < rows; ++m)
      for (int64_t g = 0; g < groups; ++g) {
        const int64_t style = pick(0, 9);
        int32_t total = 0;
        for (int64_t i = 0; i < 64; ++i) {
          int64_t v = style == 0   ? 0
                      : style == 1 ? 127
                      : style == 2 ? -127
                      : style == 3 ? (i % 2 ? 127 : -127)
                                   : pick(-127, 127);
          if (g * 64 + i >= k) v = 0;
          q.as<int8_t>()[(m * groups + g) * 64 + i] = int8_t(v);
          total += int32_t(v);
        }
        float* const own = scale.as<float>() + m * groups + g;
        *own = g * 64 % group ? own[-1] : style == 0 ? 0.0f : std::fabs(normal()) * 0.02f;
        sum.as<int32_t>()[m * groups + g] = total;
      }
  }
  // Rows are rotated in the largest blocks that divide them, groups in blocks of 64.
  static int64_t block_of(int64_t k, int64_t group) {
    return group != INFENG_GROUP_ROW || k % 128 != 0 ? 64 : k % 256 == 0 ? 256 : 128;
  }
  static int64_t random_group() {
    const int64_t choice = pick(0, 3);
    return choice == 3 ? INFENG_GROUP_ROW : 64 << choice;
  }
  infeng_activation view() const {
    infeng_activation a{};
    a.struct_size = sizeof a;
    a.group = uint32_t(group);
    a.rotated = uint64_t(rotated);
    a.q = matrix(q, INFENG_I8, rows, groups * 64, groups * 64);
    a.scale = matrix(scale, INFENG_F32, rows, groups, groups);
    a.sum = matrix(sum, INFENG_I32, rows, groups, groups);
    return a;
  }
  bool operator==(const Activation& o) const { return q == o.q && scale == o.scale && sum == o.sum; }
  bool intact() const { return q.intact() && scale.intact() && sum.intact(); }
};

inline uint16_t random_half() {
  if (chance(0.02)) return 0;
  if (chance(0.02)) return uint16_t(pick(1, 1023));  // subnormal
  return uint16_t(pick(10, 14) << 10 | pick(0, 1023));
}

inline constexpr uint32_t kWeightFormats[] = {INFENG_WEIGHT_F32,       INFENG_WEIGHT_BF16,     INFENG_WEIGHT_INT8_ROW,
                                              INFENG_WEIGHT_INT4_G64,  INFENG_WEIGHT_INT4_G32, INFENG_WEIGHT_INT4_P32,
                                              INFENG_WEIGHT_INT5_P32,  INFENG_WEIGHT_INT6_P32, INFENG_WEIGHT_INT8_G32,
                                              INFENG_WEIGHT_INT4_A256, INFENG_WEIGHT_INT4_A128};

struct PackedWeight {
  Bytes data;
  infeng_weight view{};
  PackedWeight() = default;
  PackedWeight(uint32_t format, int64_t n, int64_t k) {
    const int64_t padded = up(k, 64), panels = up(n, 16) / 16;
    int64_t bytes = 0;
    switch (format) {
      case INFENG_WEIGHT_F32:
        bytes = padded * 64;
        break;
      case INFENG_WEIGHT_BF16:
        bytes = padded * 32;
        break;
      case INFENG_WEIGHT_INT8_ROW:
        bytes = 64 + padded * 16;
        break;
      case INFENG_WEIGHT_INT4_G64:
        bytes = up(padded, 128) / 128 * 64 + padded * 8;
        break;
      case INFENG_WEIGHT_INT4_G32:
        bytes = padded / 64 * (64 + 512);
        break;
      case INFENG_WEIGHT_INT8_G32:
        bytes = padded / 64 * (64 + 1024);
        break;
      case INFENG_WEIGHT_INT4_A256:
        bytes = up(padded, 256) / 256 * 64 + padded / 64 * (64 + 512);
        break;
      case INFENG_WEIGHT_INT4_A128:
        bytes = up(padded, 128) / 128 * 64 + padded / 64 * (64 + 512);
        break;
      default:
        bytes = 64 + up(padded, 128) / 128 * 64 + padded * 2 * unit_bits(format);
        break;
    }
    data = Bytes(panels * bytes);
    for (int64_t p = 0; p < panels; ++p) fill(format, data.as<uint8_t>(p * bytes), padded);
    view = {sizeof view, format, 0, n, k, panels, bytes, data.as<void>(), nullptr};
  }

 private:
  static void fill(uint32_t format, uint8_t* out, int64_t padded) {
    const auto bytes = [&](int64_t count) {
      const int64_t style = pick(0, 5);
      for (int64_t i = 0; i < count; ++i) *out++ = uint8_t(style == 0 ? 255 : style == 1 ? 1 : 1 + rng() % 255);
    };
    const auto halves = [&] {
      for (int i = 0; i < 32; ++i, out += 2) {
        const uint16_t h = random_half();
        memcpy(out, &h, 2);
      }
    };
    switch (format) {
      case INFENG_WEIGHT_F32:
        for (int64_t i = 0; i < padded * 16; ++i) reinterpret_cast<float*>(out)[i] = uniform();
        break;
      case INFENG_WEIGHT_BF16:
        for (int64_t i = 0; i < padded * 16; ++i) {
          const float v = uniform();
          uint32_t u;
          memcpy(&u, &v, 4);
          reinterpret_cast<uint16_t*>(out)[i] = uint16_t(u >> 16);
        }
        break;
      case INFENG_WEIGHT_INT8_ROW:
        for (int i = 0; i < 16; ++i) reinterpret_cast<float*>(out)[i] = std::fabs(normal()) * 0.01f;
        out += 64;
        for (int64_t g = 0; g < padded / 64; ++g) bytes(1024);
        break;
      case INFENG_WEIGHT_INT4_G64:
        for (int64_t g = 0; g < padded / 64; ++g) {
          if (g % 2 == 0) halves();
          bytes(512);
        }
        break;
      case INFENG_WEIGHT_INT4_G32:
        for (int64_t g = 0; g < padded / 64; ++g) {
          halves();
          bytes(512);
        }
        break;
      case INFENG_WEIGHT_INT8_G32:
        for (int64_t g = 0; g < padded / 64; ++g) {
          halves();
          if (chance(0.1)) {  // files of other tools contain -128 too
            memset(out, 0, 1024);
            out += 1024;
          } else {
            bytes(1024);
          }
        }
        break;
      case INFENG_WEIGHT_INT4_A256:
      case INFENG_WEIGHT_INT4_A128:  // any s, t and u, and their largest sums
        for (int64_t g = 0; g < padded / 64; ++g) {
          if (g % (format == INFENG_WEIGHT_INT4_A256 ? 4 : 2) == 0) halves();
          bytes(64);
          bytes(512);
        }
        break;
      default:
        sub_scaled(unit_bits(format), out, padded);
        break;
    }
  }

  static int unit_bits(uint32_t format) { return 4 + int(format - INFENG_WEIGHT_INT4_P32); }

  // Any s and z, and any u for which s (u - z) is an int8.
  static void sub_scaled(int bits, uint8_t* panel, int64_t padded) {
    for (int i = 0; i < 16; ++i) reinterpret_cast<float*>(panel)[i] = std::fabs(normal()) * 0.01f;
    for (int64_t q = 0; q < padded / 32; ++q) {
      uint8_t* superblock = panel + 64 + q / 4 * (1 + 4 * bits) * 64;
      uint8_t* lines = superblock + 64 + q % 4 * bits * 64;
      const int64_t style = pick(0, 4), most = (1 << bits) - 1;
      for (int n = 0; n < 16; ++n) {
        const int64_t s = style == 0 ? 1 << (8 - bits) : pick(1, 1 << (8 - bits));
        const int64_t z = style == 1 ? 0 : style == 2 ? most : pick(0, most);
        superblock[4 * n + 2 * (q % 2) + q % 4 / 2] = uint8_t((s - 1) | z << (8 - bits));
        const int64_t low = std::max<int64_t>(0, z - 128 / s), high = std::min<int64_t>(most, z + 127 / s);
        for (int k = 0; k < 32; ++k) {
          const int64_t u = style == 3 ? high : style == 4 ? low : pick(low, high), l = k / 4, at = 4 * n + k % 4;
          lines[l % 4 * 64 + at] |= uint8_t((u & 15) << (l < 4 ? 0 : 4));
          if (bits == 5) lines[4 * 64 + at] |= uint8_t((u >> 4) << l);
          if (bits == 6) lines[(4 + l / 4) * 64 + at] |= uint8_t((u >> 4) << 2 * (l % 4));
        }
      }
    }
  }
};
