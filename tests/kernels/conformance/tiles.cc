// Compares scalar tiles with the hardware.
//   tiles compare: random configurations and data, hardware and loops give the same bytes (built with -DHARDWARE)
//   tiles CASE: does something for which the hardware faults; never returns
// SPDX-License-Identifier: Apache-2.0
#include <infeng/simd/tiles_scalar.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#ifdef HARDWARE
#include <infeng/simd/amx.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

using namespace infeng;

namespace {

TileConfig shapes(int rows, int columns, int depth) {
  TileConfig config;
  config.set(0, rows, 4 * columns);
  config.set(1, rows, 4 * depth);
  config.set(2, depth, 4 * columns);
  return config;
}

#ifdef HARDWARE
std::mt19937_64 rng(1);

struct Memory {
  alignas(64) int8_t a[16][128], b[16][128];
  int32_t c[16][32];
};

// c += a b three times, the later ones on a tile that was loaded and with bytes of b or a without a sign: what lies
// behind its rows and columns must be zero.
template <class T>
void multiply(const TileConfig& config, Memory& m) {
  T::configure(config);
  T::template load<1>(m.a, sizeof m.a[0]);
  T::template load<2>(m.b, sizeof m.b[0]);
  T::template zero<0>();
  T::template dot<0, 1, 2>();
  T::template store<0>(m.c, sizeof m.c[0]);
  T::template load<0>(m.c, sizeof m.c[0]);
  T::template dot_unsigned<0, 1, 2>();
  T::template dot_of_unsigned<0, 1, 2>();
  T::template store<0>(m.c, sizeof m.c[0]);
  T::release();
}

int compare() {
  syscall(SYS_arch_prctl, 0x1023, 18);
  const auto pick = [](int low, int high) { return std::uniform_int_distribution<int>(low, high)(rng); };
  for (int i = 0; i < 2000; ++i) {
    const TileConfig config = shapes(pick(1, 16), pick(1, 16), pick(1, 16));
    Memory first;
    for (size_t k = 0; k < sizeof first; ++k) reinterpret_cast<uint8_t*>(&first)[k] = uint8_t(rng());
    Memory second = first;
    multiply<amx::Tiles>(config, first);
    multiply<scalar::Tiles>(config, second);
    if (memcmp(&first, &second, sizeof first) != 0) return 1;

    alignas(64) uint8_t low[2][64], high[2][64], bytes[2][64];
    amx::Tiles::unpack_nibbles(first.a, low[0], high[0]);
    scalar::Tiles::unpack_nibbles(first.a, low[1], high[1]);
    amx::Tiles::unpack_bytes(first.a, bytes[0]);
    scalar::Tiles::unpack_bytes(first.a, bytes[1]);
    if (memcmp(low[0], low[1], 64) != 0 || memcmp(high[0], high[1], 64) != 0 || memcmp(bytes[0], bytes[1], 64) != 0)
      return 1;
  }
  return 0;
}
#endif

void misuse(const std::string& what) {
  using T = scalar::Tiles;
  static uint8_t memory[16 * 64];
  TileConfig config = shapes(16, 16, 16);
  if (what == "unconfigured") return T::zero<0>();
  if (what == "palette") config.palette = 2;
  if (what == "rows") config.rows[0] = 17;
  if (what == "columns") config.colsb[0] = 68;
  if (what == "half-empty") config.rows[5] = 1;
  if (what == "ninth-tile") config.set(8, 1, 4);
  if (what == "depth") config.set(1, 16, 60);
  if (what == "height") config.set(0, 15, 64);
  if (what == "width") config.set(2, 16, 60);
  T::configure(config);
  if (what == "fourth-tile") T::load<3>(memory, 64);
  if (what == "released") T::release();
  T::dot<0, 1, 2>();
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
#ifdef HARDWARE
  if (what == "compare") return compare();
#endif
  misuse(what);
  puts("nothing was refused");
  return 0;
}
