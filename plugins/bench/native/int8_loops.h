// Loops of int8 multiplications, one for each instruction set. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace infeng_bench {

// Without memory: `run(n)`, n > 0, does n * macs multiplications, each with its addition.
struct Int8Loop {
  const char* isa;
  uint64_t macs;
  void (*run)(uint64_t iterations);
};

// Ends with an entry whose name is null.
extern const Int8Loop int8_loops[];

}  // namespace infeng_bench
