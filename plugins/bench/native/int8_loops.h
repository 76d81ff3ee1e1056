// Loops of int8 multiplications, one for each instruction set. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace infeng_bench {

// A loop without memory accesses: `run(n)`, n > 0, does n * macs multiply-adds.
struct Int8Loop {
  const char* isa;
  uint64_t macs;
  void (*run)(uint64_t iterations);
};

// The last entry has a null name.
extern const Int8Loop int8_loops[];

}  // namespace infeng_bench
