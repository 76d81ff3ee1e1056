// Work stealing over the tiles of a phase: every worker has a range of its own and takes tiles from the ranges of
// others once it is done.
//
// Own ranges are consecutive and the same in each step, so a worker streams through one piece of memory: its core's
// prefetchers and the executor's hints work, and pages that a worker touched first stay on its NUMA node. A worker
// that is slowed down (a busy neighbour on its core) loses tiles from the end of its range.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>

namespace infeng {

struct TileRange {
  int64_t first;
  int64_t last;  // exclusive; first >= last: no tile is left
  bool empty() const { return first >= last; }
};

// A worker's own part of [0, tiles).
inline TileRange own_range(int64_t tiles, int worker, int threads) {
  return {tiles * worker / threads, tiles * (worker + 1) / threads};
}

class Shares {
 public:
  // Call it before the first phase; a phase has fewer than 2^32 tiles.
  void resize(int threads) {
    threads_ = threads;
    left_ = std::make_unique<Left[]>(static_cast<size_t>(threads));
  }

  // Called by one thread while the others wait.
  void deal(int64_t tiles) {
    most_ = std::max<int64_t>(1, tiles / (4 * threads_));
    for (int w = 0; w < threads_; ++w) {
      const TileRange own = own_range(tiles, w, threads_);
      left_[w].range.store(pack(own.first, own.last), std::memory_order_relaxed);
    }
  }

  // Returns the next tiles for a worker, from the front of its own range or else from the back of another's. A claim is
  // half of what is left: few claims at first, good balance at the end. `most_` bounds it, so that a cancelled step
  // stops soon.
  TileRange claim(int worker) {
    const TileRange own = take(worker, true);
    if (!own.empty()) return own;
    for (int other = 1; other < threads_; ++other) {
      const TileRange taken = take((worker + other) % threads_, false);
      if (!taken.empty()) return taken;
    }
    return {0, 0};
  }

 private:
  struct alignas(64) Left {
    std::atomic<uint64_t> range{0};
  };

  static uint64_t pack(int64_t first, int64_t last) {
    return static_cast<uint64_t>(first) << 32 | static_cast<uint64_t>(last);
  }

  TileRange take(int worker, bool from_front) {
    std::atomic<uint64_t>& range = left_[worker].range;
    uint64_t seen = range.load(std::memory_order_relaxed);
    for (;;) {
      const auto first = static_cast<int64_t>(seen >> 32);
      const auto last = static_cast<int64_t>(seen & UINT32_MAX);
      if (first >= last) return {0, 0};
      const int64_t count = std::clamp<int64_t>((last - first) / 2, 1, most_);
      const TileRange taken = from_front ? TileRange{first, first + count} : TileRange{last - count, last};
      const uint64_t rest = from_front ? pack(taken.last, last) : pack(first, taken.first);
      if (range.compare_exchange_weak(seen, rest, std::memory_order_relaxed)) return taken;
    }
  }

  int threads_ = 0;
  int64_t most_ = 1;
  std::unique_ptr<Left[]> left_;
};

}  // namespace infeng
