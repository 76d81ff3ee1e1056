// A loop of int8 multiplications for one instruction set. Units with flags of their own include nothing else of this
// library, so that no shared inline function is compiled with them. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace infeng_bench {

// Without memory: `run(n)` does n * macs multiplications and returns something that depends on all results, so that
// none can be left out.
struct Int8Loop {
  const char* isa;
  uint64_t macs;
  uint64_t (*run)(uint64_t iterations);
};

extern const Int8Loop int8_avx2, int8_avx_vnni, int8_avx512bw, int8_avx512_vnni, int8_amx_int8;

}  // namespace infeng_bench
