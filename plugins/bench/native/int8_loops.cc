// The loops are assembly, because a compiler would merge equal products and spill sums. The caller decides from the
// detected features which loops may run.
// SPDX-License-Identifier: Apache-2.0
#include "int8_loops.h"

#include <cstring>

namespace infeng_bench {
namespace {

#if defined(__x86_64__)

#define EACH6(F, R) F(R, 0) F(R, 1) F(R, 2) F(R, 3) F(R, 4) F(R, 5)
#define EACH12(F, R) EACH6(F, R) F(R, 6) F(R, 7) F(R, 8) F(R, 9) F(R, 10) F(R, 11)
#define VECTORS                                                                                                       \
  "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", \
      "xmm14", "xmm15"

// Registers 14 and 15 hold weights and activations, small numbers; the loop runs `iterations` times.
#define LOOP(NAME, FEATURES, R, BODY)                                       \
  __attribute__((target(FEATURES))) void NAME(uint64_t iterations) {        \
    asm volatile("vmovd %k1, %%xmm14\n\tvpbroadcastd %%xmm14, %%" R         \
                 "14\n\t"                                                   \
                 "vmovd %k1, %%xmm15\n\tvpbroadcastd %%xmm15, %%" R         \
                 "15\n\t"                                                   \
                 ".p2align 6\n1:\n\t" BODY "dec %0\n\tjnz 1b\n\tvzeroupper" \
                 : "+r"(iterations)                                         \
                 : "r"(0x05030107)                                          \
                 : "cc", VECTORS);                                          \
  }

// Without dot products of four: eight pairs are summed in 16 bits before they are widened, the cheapest sequence that
// cannot overflow for int4 weights (8 * 2 * 15 * 127 < 2^15). Registers 0 to 5 are sums, 6 to 8 products, 9 and 10
// wide sums, 13 ones (its value does not matter).
#define FIRST(R, S) "vpmaddubsw %%" R "15, %%" R "14, %%" R #S "\n\t"
#define ADD(R, S, T) "vpmaddubsw %%" R "15, %%" R "14, %%" R #T "\n\tvpaddw %%" R #T ", %%" R #S ", %%" R #S "\n\t"
#define NEXT(R) ADD(R, 0, 6) ADD(R, 1, 7) ADD(R, 2, 8) ADD(R, 3, 6) ADD(R, 4, 7) ADD(R, 5, 8)
#define WIDEN(R, S, T, W) "vpmaddwd %%" R "13, %%" R #S ", %%" R #T "\n\tvpaddd %%" R #T ", %%" R #W ", %%" R #W "\n\t"
#define WIDE(R) \
  WIDEN(R, 0, 6, 9) WIDEN(R, 1, 7, 10) WIDEN(R, 2, 8, 9) WIDEN(R, 3, 6, 10) WIDEN(R, 4, 7, 9) WIDEN(R, 5, 8, 10)
#define PAIRS(R) EACH6(FIRST, R) NEXT(R) NEXT(R) NEXT(R) NEXT(R) NEXT(R) NEXT(R) NEXT(R) WIDE(R)

LOOP(avx2, "avx2", "ymm", PAIRS("ymm"))
LOOP(avx512bw, "avx512bw", "zmm", PAIRS("zmm"))

// Twelve sums: two dot products per cycle with a latency of five cycles need ten.
#define QUADS(R, S) "vpdpbusd %%" R "15, %%" R "14, %%" R #S "\n\t"
LOOP(avx512_vnni, "avx512vnni", "zmm", EACH12(QUADS, "zmm"))

#ifdef HAS_AVX_VNNI
#define VEX_QUADS(R, S) "%{vex%} " QUADS(R, S)
LOOP(avx_vnni, "avxvnni", "ymm", EACH12(VEX_QUADS, "ymm"))
#endif

#ifdef HAS_AMX_INT8

// Palette 1: eight tiles of 16 rows of 64 bytes (Intel SDM vol. 1, ch. 18).
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64);

// Two rows of tiles by two columns. The memory clobber keeps the stores to the configuration.
void amx_int8(uint64_t iterations) {
  const TileConfig config;
  alignas(64) uint8_t data[16 * 64];
  std::memset(data, 3, sizeof data);
  const int64_t stride = 64;
  asm volatile(
      "ldtilecfg %1\n\ttilezero %%tmm0\n\ttilezero %%tmm1\n\ttilezero %%tmm2\n\ttilezero %%tmm3\n\t"
      "tileloadd (%2,%3,1), %%tmm4\n\ttileloadd (%2,%3,1), %%tmm5\n\t"
      "tileloadd (%2,%3,1), %%tmm6\n\ttileloadd (%2,%3,1), %%tmm7\n\t"
      ".p2align 6\n1:\n\t"
      "tdpbusd %%tmm6, %%tmm4, %%tmm0\n\ttdpbusd %%tmm7, %%tmm4, %%tmm1\n\t"
      "tdpbusd %%tmm6, %%tmm5, %%tmm2\n\ttdpbusd %%tmm7, %%tmm5, %%tmm3\n\t"
      "dec %0\n\tjnz 1b\n\ttilerelease"
      : "+r"(iterations)
      : "m"(config), "r"(data), "r"(stride)
      : "cc", "memory");
}

#endif
#endif

}  // namespace

extern const Int8Loop int8_loops[] = {
#if defined(__x86_64__)
    {"avx2", 6 * 8 * 32, avx2},
#ifdef HAS_AVX_VNNI
    {"avx_vnni", 12 * 32, avx_vnni},
#endif
    {"avx512bw", 6 * 8 * 64, avx512bw},
    {"avx512_vnni", 12 * 64, avx512_vnni},
#ifdef HAS_AMX_INT8
    {"amx_int8", 4 * 16 * 16 * 64, amx_int8},
#endif
#endif
    {nullptr, 0, nullptr}};

}  // namespace infeng_bench
