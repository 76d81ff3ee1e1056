// Tiles in hardware: AMX_TILE and AMX_INT8, and AVX-512 F and BW and GFNI, which every CPU with AMX has. The
// instructions are inline assembly, because GCC's intrinsics declare no memory for loads and only 8 of the
// configuration's 64 bytes, so that GCC drops or moves the stores that fill them.
// SPDX-License-Identifier: Apache-2.0
#ifndef INFENG_SIMD_AMX_H
#define INFENG_SIMD_AMX_H

#include <infeng/simd/avx512.h>
#include <infeng/simd/tiles.h>

namespace infeng::amx {
namespace {

struct Tiles {
  static INFENG_INLINE void configure(const TileConfig& config) { __asm__ volatile("ldtilecfg %0" ::"m"(config)); }
  static INFENG_INLINE void release() { __asm__ volatile("tilerelease" ::: "memory"); }
  template <int Tile>
  static INFENG_INLINE void zero() {
    __asm__ volatile("tilezero %%tmm%c0" ::"i"(Tile));
  }
  template <int Tile>
  static INFENG_INLINE void load(const void* from, int64_t stride) {
    __asm__ volatile("tileloadd (%1,%2,1), %%tmm%c0" ::"i"(Tile), "r"(from), "r"(stride) : "memory");
  }
  template <int Tile>
  static INFENG_INLINE void store(void* to, int64_t stride) {
    __asm__ volatile("tilestored %%tmm%c0, (%1,%2,1)" ::"i"(Tile), "r"(to), "r"(stride) : "memory");
  }
  template <int C, int A, int B>
  static INFENG_INLINE void dot() {
    __asm__ volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
  }
  template <int C, int A, int B>
  static INFENG_INLINE void dot_unsigned() {
    __asm__ volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
  }
  template <int C, int A, int B>
  static INFENG_INLINE void dot_of_unsigned() {
    __asm__ volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
  }
  static INFENG_INLINE __m512 floats(const int32_t* products) {
    return _mm512_cvtepi32_ps(_mm512_loadu_si512(products));
  }
  // Each is one multiplication by a bit matrix. n - 8 of a nibble n consists of its lower three bits and five copies of
  // its inverted fourth bit.
  static INFENG_INLINE void unpack_nibbles(const void* line, uint8_t* low, uint8_t* high) {
    const __m512i v = _mm512_loadu_si512(line);
    _mm512_storeu_si512(low, _mm512_gf2p8affine_epi64_epi8(v, _mm512_set1_epi64(0x0102040808080808), 0xF8));
    _mm512_storeu_si512(high, _mm512_gf2p8affine_epi64_epi8(v, _mm512_set1_epi64(0x1020408080808080), 0xF8));
  }
  static INFENG_INLINE void unpack_bytes(const void* line, uint8_t* out) {
    _mm512_storeu_si512(out, _mm512_xor_si512(_mm512_loadu_si512(line), _mm512_set1_epi8(-128)));
  }
  template <int Bits>
  static INFENG_INLINE void unpack_scaled(const uint8_t* packed, const SubScales& s, uint8_t* lines) {
    avx512::Bw::unpack_weights<Bits, 0>(packed, s, lines);
  }
};

}  // namespace
}  // namespace infeng::amx
#endif  // INFENG_SIMD_AMX_H
