// Panels on several threads.
// SPDX-License-Identifier: Apache-2.0
#ifndef INFENG_EXTENSION_PANEL_THREADS_H
#define INFENG_EXTENSION_PANEL_THREADS_H

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace infeng {

// Runs work(panel) for all panels and throws the error of the lowest panel, whatever the threads' timing: panels are
// taken in ascending order, so every panel below a failed one is finished too.
template <class Work>
void for_panels(int64_t panels, int threads, Work work) {
  std::atomic<int64_t> next{0};
  std::mutex mutex;
  int64_t failed = panels;
  std::exception_ptr error;
  auto loop = [&] {
    for (int64_t p; (p = next.fetch_add(1)) < panels;) {
      try {
        work(p);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (p < failed) failed = p, error = std::current_exception();
        next.store(panels);
      }
    }
  };
  std::vector<std::jthread> helpers;
  for (int64_t i = 1; i < std::min<int64_t>(threads, panels); i++) helpers.emplace_back(loop);
  loop();
  helpers.clear();
  if (error) std::rethrow_exception(error);
}

}  // namespace infeng

#endif  // INFENG_EXTENSION_PANEL_THREADS_H
