// Memory that a linear prefetches while it streams its weight: the B of adapters that its own tile needs, and memory
// that later ops read (INFENG_EXTENSION_FETCH). It fetches a few lines per group of k, because a burst would occupy all
// fill buffers.
// SPDX-License-Identifier: Apache-2.0
#ifndef INFENG_OPS_FEED_H
#define INFENG_OPS_FEED_H

#include <infeng/ops/lora.h>

namespace infeng {
namespace {

class Feed {
 public:
  // Removes all pieces.
  INFENG_INLINE void clear() { count_ = now_ = 0, lines_ = 0; }

  INFENG_INLINE void add(const void* data, int64_t bytes) {
    if (bytes <= 0 || count_ == kMost) return;
    const int64_t lines = ceil_div(bytes, kLine);
    ranges_[count_++] = {(const uint8_t*)data, lines};
    lines_ += lines;
  }

  // Called after all pieces are added: distributes them over `steps` steps.
  INFENG_INLINE void spread(int64_t steps) { quota_ = lines_ == 0 ? 0 : ceil_div(lines_, max_of(steps, 1)); }

  template <Vector V>
  INFENG_INLINE void step() {
    if (now_ < count_) fetch<V>();
  }

 private:
  static constexpr int kMost = 256;  // pieces of memory; further ones are not prefetched
  struct Range {
    const uint8_t* at;
    int64_t lines;
  };

  template <Vector V>
  INFENG_NOINLINE void fetch() {
    for (int64_t left = quota_; left > 0 && now_ < count_;) {
      Range& range = ranges_[now_];
      const int64_t lines = min_of(left, range.lines);
      for (int64_t i = 0; i < lines; ++i) V::prefetch(range.at + i * kLine);
      range.at += lines * kLine;
      range.lines -= lines;
      left -= lines;
      now_ += range.lines == 0;
    }
  }

  int count_ = 0;
  int now_ = 0;
  int64_t lines_ = 0;
  int64_t quota_ = 0;
  Range ranges_[kMost];
};

// Adds the B of every segment in panels [begin, begin + panels).
INFENG_INLINE void feed_lora(Feed& feed, const infeng_lora_epilogue& e, int64_t begin, int64_t panels) {
  for (int32_t i = 0; i < e.segment_count; ++i) {
    const infeng_lora_segment& s = *segment_at(e.segments, e.segment_stride, i);
    const LoraPanels own(s, begin, panels);
    if (own.count <= 0 || s.row_begin >= s.row_end) continue;
    const int64_t bytes = lora_bytes(s);
    feed.add((const uint8_t*)s.b + own.first * bytes, own.count * bytes);
    if (s.b_scale) feed.add(s.b_scale + own.first * kLanes, own.count * kLanes * int64_t(sizeof *s.b_scale));
  }
}

// Adds this worker's share of a later op's ranges, taken as one, in the last of its tiles, so that the weight does not
// evict it from the cache again.
inline void feed_later(Feed& feed, const infeng_args& args, int64_t tile, int64_t tiles, int64_t tile_bytes,
                       const infeng_worker& worker) {
  constexpr int64_t kKept = 1 << 20;  // most bytes of weight that may follow
  const infeng_extension* link = args.next;
  for (int i = 0; link && link->type != INFENG_EXTENSION_FETCH && i < 64; ++i) link = link->next;
  if (!link || link->type != INFENG_EXTENSION_FETCH) return;
  const infeng_fetch& fetch = *(const infeng_fetch*)link;
  const int64_t count = max_of(worker.count, 1);
  const int64_t begin = tiles * worker.index / count, end = tiles * (worker.index + 1) / count;
  const int64_t first = max_of(begin, end - max_of(kKept / tile_bytes, 1));
  if (tile < first || tile >= end) return;
  int64_t total = 0;
  for (int64_t i = 0; i < fetch.count; ++i) total += fetch.ranges[i].bytes;
  const int64_t share = total * worker.index / count, size = total * (worker.index + 1) / count - share;
  int64_t from = share + size * (tile - first) / (end - first), to = share + size * (tile + 1 - first) / (end - first);
  for (int64_t i = 0; i < fetch.count && to > 0; ++i) {
    const infeng_range& range = fetch.ranges[i];
    if (from < range.bytes) feed.add((const uint8_t*)range.data + from, min_of(to, range.bytes) - from);
    from = max_of(from - range.bytes, 0);
    to -= range.bytes;
  }
}

}  // namespace
}  // namespace infeng
#endif  // INFENG_OPS_FEED_H
