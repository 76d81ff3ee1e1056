// The tile vocabulary of matrix kernels. `amx::Tiles` in amx.h uses the hardware; `scalar::Tiles` in tiles_scalar.h
// does the same in plain loops and traps where the hardware would. There are eight tiles of up to 16 rows of 64 bytes;
// a configuration sets the rows and bytes per row (`colsb`) of each. A tile that is loaded, zeroed or multiplied is
// zero outside of its rows and columns.
// SPDX-License-Identifier: Apache-2.0
#ifndef INFENG_SIMD_TILES_H
#define INFENG_SIMD_TILES_H

#include <infeng/simd/vec.h>

namespace infeng {
namespace {

constexpr int kTileRows = 16;
constexpr int kTiles = 8;

// The 64 bytes that LDTILECFG reads (Intel SDM volume 1, 18.2).
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t colsb[16] = {};
  uint8_t rows[16] = {};

  INFENG_INLINE void set(int tile, int tile_rows, int tile_colsb) {
    rows[tile] = uint8_t(tile_rows);
    colsb[tile] = uint16_t(tile_colsb);
  }
};
static_assert(sizeof(TileConfig) == 64, "LDTILECFG reads 64 bytes");

// clang-format off
template <class T, class V>
concept Tiles = Vector<V> && requires(const TileConfig& config, const void* from, void* to, int64_t stride,
                                      const int32_t* products, uint8_t* bytes) {
  { T::configure(config) };                  // for this thread; zeroes all tiles
  { T::release() };                          // ends the use of tiles
  { T::template zero<0>() };
  { T::template load<0>(from, stride) };     // row r from `from + r * stride` bytes
  { T::template store<0>(to, stride) };
  // c[m][n] += sum over k of a[m][k] * b[k/4][4 n + k % 4], signed bytes, exact int32. Rows of c are those of a,
  // columns those of b, and b has a row for every four columns of a.
  { T::template dot<0, 1, 2>() };
  { T::template dot_unsigned<0, 1, 2>() };   // the same with unsigned bytes of b
  { T::template dot_of_unsigned<0, 1, 2>() };  // the same with unsigned bytes of a
  { T::floats(products) };                   // V::F: 16 int32, converted
  { T::unpack_nibbles(from, bytes, bytes) }; // low and high nibbles of 64 bytes, each minus 8, as 64 int8
  { T::unpack_bytes(from, bytes) };          // 64 u8, each minus 128, as 64 int8
};
// clang-format on

// For formats with integer sub-scales: unpacks 64 k to 16 lines of s (u - z), which is an int8.
template <class T, class V>
concept SubScaledTiles =
    Tiles<T, V> && SubScaled<V> && requires(const uint8_t* packed, const SubScales& s, uint8_t* lines) {
      { T::template unpack_scaled<4>(packed, s, lines) };
    };

}  // namespace
}  // namespace infeng
#endif  // INFENG_SIMD_TILES_H
