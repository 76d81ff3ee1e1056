// Zeroed anonymous memory for weights, caches and scratch.
#pragma once

#include <infeng/extension/panel.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "machine/device.h"
#include "weights/pages.h"

namespace infeng {

inline constexpr int64_t kHugePage = int64_t{2} << 20;

constexpr int64_t round_up(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

// One mapping, 2 MB aligned. Pages that were never written cost no memory.
class Arena {
 public:
  // Throws Error "out_of_memory" (address space or overcommit limit) or "lock_refused".
  explicit Arena(int64_t nbytes, bool huge_pages = true, const Pages& pages = {});
  ~Arena();
  Arena(Arena&& other) noexcept;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  std::byte* data() const { return data_; }
  int64_t nbytes() const { return nbytes_; }

  // Applies another placement, such as locking for a later holder. Throws Error "lock_refused".
  void place(const Pages& pages);
  // The errno with which the system refused a placement; 0 if it did not.
  int place_error() const { return place_error_; }

  // Bytes backed by huge pages now, from /proc/self/smaps; 0 if the system does not report them.
  int64_t huge_bytes() const;

 private:
  std::byte* data_ = nullptr;
  int64_t nbytes_ = 0;
  int64_t mapped_ = 0;
  int64_t used_ = 0;  // bytes to place and lock: `mapped_` with huge pages, else `nbytes_`
  int place_error_ = 0;
};

// An arena, or memory of a device.
class Storage {
 public:
  // `device`: NULL for an arena.
  Storage(int64_t nbytes, const DevicePtr& device, bool huge_pages = true, const Pages& pages = {});

  std::byte* data() const { return on_device_ ? on_device_->data() : arena_->data(); }
  int64_t nbytes() const { return on_device_ ? on_device_->nbytes() : arena_->nbytes(); }
  int place_error() const { return arena_ ? arena_->place_error() : 0; }
  bool is_on_device() const { return on_device_.has_value(); }

  // Copy bytes from or to the host, or within the memory; a device does so after all work that was queued.
  void write(std::byte* to, const void* from, int64_t nbytes) const { copy(to, from, nbytes, INFENG_COPY_TO_DEVICE); }
  void read(void* to, const std::byte* from, int64_t nbytes) const { copy(to, from, nbytes, INFENG_COPY_TO_HOST); }
  void move(std::byte* to, const std::byte* from, int64_t nbytes) const {
    copy(to, from, nbytes, INFENG_COPY_ON_DEVICE);
  }

 private:
  void copy(void* to, const void* from, int64_t nbytes, int32_t direction) const;

  std::optional<Arena> arena_;
  std::optional<DeviceMemory> on_device_;
};

// Allocates small, zeroed, 64-byte aligned pieces that live as long as the allocator.
class Bump {
 public:
  explicit Bump(DevicePtr device = nullptr) : device_(std::move(device)) {}
  void* take(int64_t nbytes, int64_t align = kLine);
  template <class T>
  T* take_array(int64_t count, int64_t align = kLine) {
    return static_cast<T*>(take(count * static_cast<int64_t>(sizeof(T)), align));
  }
  int64_t taken() const { return taken_; }

 private:
  const DevicePtr device_;
  std::vector<Storage> chunks_;
  int64_t used_ = 0;
  int64_t taken_ = 0;
};

}  // namespace infeng
