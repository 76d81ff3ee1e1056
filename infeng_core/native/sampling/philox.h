// Philox4x32-10: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
#pragma once

#include <array>
#include <cstdint>

namespace infeng {

inline std::array<uint32_t, 4> philox4x32_10(std::array<uint32_t, 2> key, std::array<uint32_t, 4> counter) {
  for (int round = 0; round < 10; round++) {
    const uint64_t a = uint64_t(0xD2511F53u) * counter[0];
    const uint64_t b = uint64_t(0xCD9E8D57u) * counter[2];
    counter = {uint32_t(b >> 32) ^ counter[1] ^ key[0], uint32_t(b), uint32_t(a >> 32) ^ counter[3] ^ key[1],
               uint32_t(a)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

}  // namespace infeng
