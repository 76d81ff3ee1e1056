// Loops of int8 multiplications, one for each instruction set. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace infeng_bench {

// run(n), n > 0, executes n * macs multiply-adds without access to memory.
struct Int8Loop {
  const char* isa;
  uint64_t macs;
  void (*run)(uint64_t iterations);
};

// The last entry has no name.
extern const Int8Loop int8_loops[];

}  // namespace infeng_bench
