// Work split over threads by output: an output does not depend on the thread that computes it.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace infeng::calibration {

// Runs work(i) for i in [0, count) on up to `threads` threads, the caller among them.
template <class Work>
void for_each(int64_t count, int threads, Work work) {
  std::atomic<int64_t> next{0};
  auto loop = [&] {
    for (int64_t i; (i = next.fetch_add(1)) < count;) work(i);
  };
  std::vector<std::jthread> helpers;
  for (int64_t i = 1; i < std::min<int64_t>(threads, count); i++) helpers.emplace_back(loop);
  loop();
}

}  // namespace infeng::calibration
