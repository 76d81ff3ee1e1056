// Reads of memory larger than the caches, on several threads at once. SPDX-License-Identifier: Apache-2.0
#include <sys/mman.h>

#include <algorithm>
#include <barrier>
#include <cstring>

#include "probe.h"

namespace {

using namespace infeng_bench;

constexpr int64_t kLine = 64;

typedef uint64_t Line __attribute__((vector_size(kLine)));

volatile uint64_t sink;

// Read [begin, begin + bytes) as `kStreams` parts side by side, a line of each in turn.
template <int kStreams>
uint64_t read_part(const char* begin, int64_t bytes, int64_t prefetch) {
  const int64_t part = bytes / kStreams / kLine * kLine;
  Line sums[kStreams] = {};
  for (int64_t at = 0; at < part; at += kLine) {
    for (int s = 0; s < kStreams; ++s) {
      const char* line = begin + s * part + at;
      // A distance past the end touches no memory: a prefetch of an unmapped address does nothing.
      if (prefetch) __builtin_prefetch(line + prefetch, 0, 3);
      sums[s] ^= *reinterpret_cast<const Line*>(line);
    }
  }
  uint64_t all = 0;
  for (auto& sum : sums)
    for (int i = 0; i < 8; ++i) all ^= sum[i];
  return all;
}

uint64_t read_any(const char* begin, int64_t bytes, int streams, int64_t prefetch) {
  switch (streams) {
    case 1:
      return read_part<1>(begin, bytes, prefetch);
    case 2:
      return read_part<2>(begin, bytes, prefetch);
    default:
      return read_part<4>(begin, bytes, prefetch);
  }
}

}  // namespace

// Map `bytes` (a multiple of 2 MB) of anonymous memory, advise huge pages, and touch all pages. NULL: out of memory.
INFENG_BENCH_EXPORT void* infeng_bench_map(int64_t bytes, int threads) {
  constexpr int64_t kHuge = 2 << 20;
  void* mapped = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  madvise(mapped, static_cast<size_t>(bytes), MADV_HUGEPAGE);
  on_threads(threads, [&](int index) {
    const int64_t pages = bytes / kHuge, first = pages * index / threads, last = pages * (index + 1) / threads;
    std::memset(static_cast<char*>(mapped) + first * kHuge, index + 1, static_cast<size_t>((last - first) * kHuge));
  });
  return mapped;
}

INFENG_BENCH_EXPORT void infeng_bench_unmap(void* mapped, int64_t bytes) { munmap(mapped, static_cast<size_t>(bytes)); }

// Read the memory once, each thread a contiguous part as `streams` (1, 2 or 4) streams, with a prefetch `prefetch`
// bytes ahead (0: none); returns the seconds from the first start to the last end.
INFENG_BENCH_EXPORT double infeng_bench_read(const void* mapped, int64_t bytes, int threads, int streams,
                                             int64_t prefetch) {
  std::barrier ready(threads);
  std::vector<Clock::time_point> starts(static_cast<size_t>(threads)), ends(static_cast<size_t>(threads));
  on_threads(threads, [&](int index) {
    const int64_t lines = bytes / kLine, first = lines * index / threads, last = lines * (index + 1) / threads;
    ready.arrive_and_wait();
    starts[static_cast<size_t>(index)] = Clock::now();
    sink = read_any(static_cast<const char*>(mapped) + first * kLine, (last - first) * kLine, streams, prefetch);
    ends[static_cast<size_t>(index)] = Clock::now();
  });
  const auto first = *std::min_element(starts.begin(), starts.end());
  return std::chrono::duration<double>(*std::max_element(ends.begin(), ends.end()) - first).count();
}
