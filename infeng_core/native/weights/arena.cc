#include "weights/arena.h"

#include <infeng/extension/error.h>

#include <sys/mman.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <utility>

namespace infeng {
namespace {

constexpr int64_t kChunk = 4 * kHugePage;
constexpr int64_t kLargest = int64_t{1} << 46;

}  // namespace

Arena::Arena(int64_t nbytes, bool huge_pages, const Pages& pages) : nbytes_(nbytes) {
  if (nbytes < 0 || nbytes > kLargest) fail(kBad, "an arena of ", nbytes, " bytes is not possible");
  check(pages);
  // mmap aligns to small pages only: map one huge page more than needed, then unmap the ends.
  mapped_ = round_up(nbytes > 0 ? nbytes : 1, kHugePage);
  const int64_t reserved = mapped_ + kHugePage;
  int flags = MAP_PRIVATE | MAP_ANONYMOUS;
#ifdef MAP_NORESERVE
  flags |= MAP_NORESERVE;
#endif
  void* base = mmap(nullptr, static_cast<size_t>(reserved), PROT_READ | PROT_WRITE, flags, -1, 0);
  if (base == MAP_FAILED) {
    fail("out_of_memory", "cannot map ", nbytes, " bytes: ", std::strerror(errno), "; free memory or ask for less");
  }
  auto* begin = static_cast<std::byte*>(base);
  const auto address = static_cast<int64_t>(reinterpret_cast<uintptr_t>(base));
  const int64_t before = round_up(address, kHugePage) - address;
  data_ = begin + before;
  if (before > 0) munmap(begin, static_cast<size_t>(before));
  if (before < kHugePage) munmap(data_ + mapped_, static_cast<size_t>(kHugePage - before));
#ifdef MADV_HUGEPAGE
  // Advice only: the arena works without huge pages too.
  if (huge_pages) (void)madvise(data_, static_cast<size_t>(mapped_), MADV_HUGEPAGE);
#ifdef MADV_NOHUGEPAGE
  if (!huge_pages) (void)madvise(data_, static_cast<size_t>(mapped_), MADV_NOHUGEPAGE);
#endif
#else
  (void)huge_pages;
#endif
  used_ = huge_pages ? mapped_ : nbytes;  // a small arena does not lock its unused rest
  try {
    this->place(pages);
  } catch (...) {
    munmap(data_, static_cast<size_t>(mapped_));
    throw;
  }
}

void Arena::place(const Pages& pages) {
  if (const int error = infeng::place(pages, data_, used_)) place_error_ = error;
}

Arena::~Arena() {
  if (data_ != nullptr) munmap(data_, static_cast<size_t>(mapped_));
}

Arena::Arena(Arena&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      nbytes_(other.nbytes_),
      mapped_(other.mapped_),
      used_(other.used_),
      place_error_(other.place_error_) {}

int64_t Arena::huge_bytes() const {
  // An entry may merge neighbouring mappings of equal flags, so its count is capped by the overlap.
  std::FILE* file = std::fopen("/proc/self/smaps", "re");
  if (file == nullptr) return 0;
  const auto begin = reinterpret_cast<uintptr_t>(data_);
  const auto end = begin + static_cast<uintptr_t>(mapped_);
  char line[512];
  int64_t overlap = 0;
  int64_t total = 0;
  while (std::fgets(line, sizeof line, file) != nullptr) {
    uint64_t first = 0;
    uint64_t last = 0;
    long kilobytes = 0;
    if (std::sscanf(line, "%" SCNx64 "-%" SCNx64 " ", &first, &last) == 2) {
      const uintptr_t low = first > begin ? first : begin;
      const uintptr_t high = last < end ? last : end;
      overlap = high > low ? static_cast<int64_t>(high - low) : 0;
    } else if (overlap > 0 && std::sscanf(line, "AnonHugePages: %ld kB", &kilobytes) == 1) {
      const int64_t bytes = int64_t{kilobytes} * 1024;
      total += bytes < overlap ? bytes : overlap;
    }
  }
  std::fclose(file);
  return total;
}

Storage::Storage(int64_t nbytes, const DevicePtr& device, bool huge_pages, const Pages& pages) {
  if (device != nullptr) {
    on_device_.emplace(device, nbytes);
  } else {
    arena_.emplace(nbytes, huge_pages, pages);
  }
}

void Storage::copy(void* to, const void* from, int64_t nbytes, int32_t direction) const {
  if (on_device_) {
    on_device_->device().copy(to, from, nbytes, direction);
  } else {
    std::memcpy(to, from, static_cast<size_t>(nbytes));
  }
}

void* Bump::take(int64_t nbytes, int64_t align) {
  if (nbytes < 0 || align <= 0 || align > kHugePage || (align & (align - 1)) != 0) {
    fail(kBad, "cannot take ", nbytes, " bytes aligned to ", align);
  }
  nbytes = round_up(nbytes > 0 ? nbytes : 1, kLine);
  int64_t at = round_up(used_, align);
  if (chunks_.empty() || at + nbytes > chunks_.back().nbytes()) {
    chunks_.emplace_back(round_up(nbytes > kChunk ? nbytes : kChunk, kHugePage), device_);
    at = 0;
  }
  used_ = at + nbytes;
  taken_ += nbytes;
  return chunks_.back().data() + at;
}

}  // namespace infeng
