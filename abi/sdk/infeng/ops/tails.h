// The A of adapters whose tails of ranks are stored in 4 bits (INFENG_I8T4): panels of 16 rank rows, of which all but
// every eighth have 4 bits. A panel is expanded to one of int8-row, which the core of such weights multiplies: it is
// read from memory once and then from the cache. SPDX-License-Identifier: Apache-2.0
#ifndef INFENG_OPS_TAILS_H
#define INFENG_OPS_TAILS_H

#include <infeng/ops/args.h>

#include <cstring>

namespace infeng {
namespace {

constexpr int64_t kTailRows = 8;                          // rank rows, of which the first has 8 bits
constexpr int64_t kTailGroup = (kGroup / 8 + 1) * kLine;  // bytes of 64 inputs

// Bytes of a panel over k inputs.
INFENG_INLINE int64_t tails_bytes(int64_t k) { return kLine + ceil_div(k, kGroup) * kTailGroup; }

// Writes a panel of int8-row over k inputs. Four bytes, inputs 4 l to 4 l + 3 of a lane, are computed as one number.
template <Vector V>
INFENG_NOINLINE void expand_tails(const uint8_t* __restrict panel, int64_t k, uint8_t* __restrict out) {
  constexpr uint32_t kNibbles = 0x0f0f0f0f, kZero = 0x78787878;  // q + 8 becomes q + 128
  constexpr int kLines = kGroup / 8;                             // of nibbles in a group
  constexpr int64_t kAhead = 4096;                               // bytes
  std::memcpy(out, panel, kLine);                                // scales
  panel += kLine;
  out += kLine;
  for (int64_t g = 0; g < k; g += kGroup, panel += kTailGroup, out += kGroup * kLanes) {
    uint32_t nibbles[kLines][kLanes], lower[2][kLines], bytes[2 * kLines][kLanes];
    std::memcpy(nibbles, panel, sizeof nibbles);
    std::memcpy(lower, panel + sizeof nibbles, sizeof lower);
    for (int l = 0; l <= kLines; ++l) V::prefetch(panel + kAhead + l * kLine);
    for (int l = 0; l < kLines; ++l)
      for (int n = 0; n < kLanes; ++n) {
        bytes[l][n] = (nibbles[l][n] & kNibbles) + kZero;
        bytes[l + kLines][n] = (nibbles[l][n] >> 4 & kNibbles) + kZero;
      }
    for (int h = 0; h < 2; ++h)  // lanes 0 and 8
      for (int l = 0; l < kLines; ++l) {
        const int n = h * int(kTailRows);
        bytes[l][n] = (nibbles[l][n] & kNibbles) << 4 | (lower[h][l] & kNibbles);
        bytes[l + kLines][n] = (nibbles[l][n] & kNibbles << 4) | (lower[h][l] >> 4 & kNibbles);
      }
    std::memcpy(out, bytes, sizeof bytes);
  }
}

}  // namespace
}  // namespace infeng
#endif  // INFENG_OPS_TAILS_H
