// AMX: tdpbusd on whole tiles, two rows of tiles by two columns. SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include <cstring>

#include "int8.h"

namespace infeng_bench {
namespace {

constexpr int kRows = 16, kBytes = 64;

// Palette 1: eight tiles of 16 rows of 64 bytes (Intel SDM vol. 1, ch. 18).
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfig) == 64);

uint64_t run(uint64_t iterations) {
  TileConfig config;
  for (int tile = 0; tile < 8; ++tile) {
    config.rows[tile] = kRows;
    config.row_bytes[tile] = kBytes;
  }
  // Not _tile_loadconfig: GCC 12 does not see that it reads all 64 bytes and may drop the stores above.
  asm volatile("ldtilecfg %0" : : "m"(config) : "memory");
  alignas(64) uint8_t data[kRows * kBytes];
  std::memset(data, 3, sizeof data);
  asm volatile("" : : : "memory");
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_loadd(4, data, kBytes);
  _tile_loadd(5, data, kBytes);
  _tile_loadd(6, data, kBytes);
  _tile_loadd(7, data, kBytes);
  for (uint64_t i = 0; i < iterations; ++i) {
    _tile_dpbusd(0, 4, 6);
    _tile_dpbusd(1, 4, 7);
    _tile_dpbusd(2, 5, 6);
    _tile_dpbusd(3, 5, 7);
  }
  uint64_t all = 0, part;
  for (int tile = 0; tile < 4; ++tile) {
    if (tile == 0) _tile_stored(0, data, kBytes);
    if (tile == 1) _tile_stored(1, data, kBytes);
    if (tile == 2) _tile_stored(2, data, kBytes);
    if (tile == 3) _tile_stored(3, data, kBytes);
    asm volatile("" : : : "memory");
    std::memcpy(&part, data, sizeof part);
    all ^= part;
  }
  _tile_release();
  return all;
}

}  // namespace

const Int8Loop int8_amx_int8 = {"amx_int8", 4 * 16 * 16 * 64, run};

}  // namespace infeng_bench
