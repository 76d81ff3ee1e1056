// Tiles in plain loops: the hardware's results on any CPU, and a trap where the hardware would raise a fault (Intel SDM
// volume 2: an unconfigured tile, a bad palette, shapes that do not match).
// SPDX-License-Identifier: Apache-2.0
#ifndef INFENG_SIMD_TILES_SCALAR_H
#define INFENG_SIMD_TILES_SCALAR_H

#include <infeng/simd/scalar.h>
#include <infeng/simd/tiles.h>

namespace infeng::scalar {
namespace {

struct Tiles {
  static void configure(const TileConfig& config) {
    const uint8_t* bytes = (const uint8_t*)&config;
    bool valid = config.palette == 1 && config.start_row == 0;
    for (int i = 2; i < 16; ++i) valid = valid && bytes[i] == 0;
    for (int i = 0; i < 16; ++i) {
      const int rows = config.rows[i], colsb = config.colsb[i];
      valid = valid && (i < kTiles ? rows <= kTileRows && colsb <= kLine && (rows == 0) == (colsb == 0)
                                   : rows == 0 && colsb == 0);
    }
    require(valid);
    state() = State{};
    state().config = config;
    state().configured = true;
  }
  static void release() { state() = State{}; }

  template <int Tile>
  static void zero() {
    require(usable(Tile));
    state().data[Tile] = Data{};
  }
  template <int Tile>
  static void load(const void* from, int64_t stride) {
    zero<Tile>();
    for (int r = 0; r < rows(Tile); ++r)
      __builtin_memcpy(state().data[Tile].bytes[r], (const uint8_t*)from + r * stride, unsigned(colsb(Tile)));
  }
  template <int Tile>
  static void store(void* to, int64_t stride) {
    require(usable(Tile));
    for (int r = 0; r < rows(Tile); ++r)
      __builtin_memcpy((uint8_t*)to + r * stride, state().data[Tile].bytes[r], unsigned(colsb(Tile)));
  }
  template <int C, int A, int B>
  static void dot() {
    multiply<C, A, B, int8_t, int8_t>();
  }
  template <int C, int A, int B>
  static void dot_unsigned() {
    multiply<C, A, B, int8_t, uint8_t>();
  }
  template <int C, int A, int B>
  static void dot_of_unsigned() {
    multiply<C, A, B, uint8_t, int8_t>();
  }
  static Scalar::F floats(const int32_t* products) {
    return Scalar::lanes<Scalar::F>([&](int i) { return float(products[i]); });
  }
  static void unpack_nibbles(const void* line, uint8_t* low, uint8_t* high) {
    for (int i = 0; i < kLine; ++i) {
      const uint8_t byte = ((const uint8_t*)line)[i];
      low[i] = uint8_t((byte & 15) - 8);
      high[i] = uint8_t((byte >> 4) - 8);
    }
  }
  static void unpack_bytes(const void* line, uint8_t* out) {
    for (int i = 0; i < kLine; ++i) out[i] = ((const uint8_t*)line)[i] ^ 0x80;
  }
  template <int Bits>
  static void unpack_scaled(const uint8_t* packed, const SubScales& s, uint8_t* lines) {
    for (int l = 0; l < 16; ++l)
      for (int b = 0; b < kLine; ++b) {
        const int u = Scalar::unit<Bits>(packed + l / 8 * Bits * kLine + b, l % 8), n = b / 4;
        const int w = s.s[l / 8][2 * n] * u - s.zs[2 * n + l / 8];
        require(w >= -128 && w <= 127);
        lines[l * kLine + b] = uint8_t(w);
      }
  }

 private:
  struct Data {
    uint8_t bytes[kTileRows][kLine] = {};
  };
  struct State {
    bool configured = false;
    TileConfig config;
    Data data[kTiles];
  };
  template <int C, int A, int B, class ByteA, class ByteB>
  static void multiply() {
    static_assert(C != A && C != B && A != B, "the hardware refuses equal operands");
    require(usable(C) && usable(A) && usable(B) && rows(C) == rows(A) && colsb(C) == colsb(B) &&
            colsb(A) == 4 * rows(B) && colsb(C) % 4 == 0);
    const Data &a = state().data[A], &b = state().data[B];
    Data& c = state().data[C];
    for (int m = 0; m < rows(C); ++m)
      for (int n = 0; n < colsb(C) / 4; ++n) {
        int32_t sum;
        __builtin_memcpy(&sum, c.bytes[m] + 4 * n, 4);
        for (int k = 0; k < colsb(A); ++k) sum += ByteA(a.bytes[m][k]) * ByteB(b.bytes[k / 4][4 * n + k % 4]);
        __builtin_memcpy(c.bytes[m] + 4 * n, &sum, 4);
      }
  }
  static State& state() {
    static thread_local State s;
    return s;
  }
  static int rows(int tile) { return state().config.rows[tile]; }
  static int colsb(int tile) { return state().config.colsb[tile]; }
  static bool usable(int tile) { return state().configured && rows(tile) > 0; }
  static void require(bool condition) {
    if (!condition) __builtin_trap();
  }
};

}  // namespace
}  // namespace infeng::scalar
#endif  // INFENG_SIMD_TILES_SCALAR_H
