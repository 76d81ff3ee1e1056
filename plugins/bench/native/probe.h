// Exports, clock and threads of the loops. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#define INFENG_BENCH_EXPORT extern "C" __attribute__((visibility("default")))

namespace infeng_bench {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Run body(index) on `threads` threads, the calling one among them, and wait for all.
template <typename Body>
void on_threads(int threads, Body body) {
  std::vector<std::thread> others;
  for (int i = 1; i < threads; ++i) others.emplace_back([&body, i] { body(i); });
  body(0);
  for (auto& thread : others) thread.join();
}

}  // namespace infeng_bench
