#include "weights/pages.h"

#include <infeng/extension/error.h>

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace infeng {
namespace {

constexpr int kMostNodes = 1024;  // the most that Linux can be built for (CONFIG_NODES_SHIFT is at most 10)

#if defined(__linux__) && defined(SYS_mbind)

// From Linux include/uapi/linux/mempolicy.h, because the C library has neither the call nor its numbers.
constexpr int kPreferred = 1;
constexpr int kInterleave = 3;
constexpr int kPreferredMany = 5;  // since Linux 5.15
constexpr int kWordBits = 8 * sizeof(unsigned long);

int bind_pages(const Pages& pages, void* data, int64_t nbytes) {
  unsigned long mask[kMostNodes / kWordBits] = {};
  for (const int node : pages.nodes) mask[node / kWordBits] |= 1UL << (node % kWordBits);
  const int many = pages.nodes.size() > 1 ? kPreferredMany : kPreferred;
  const int mode = pages.policy == Pages::Policy::interleave ? kInterleave : many;
  // Linux reads one bit less than `maxnode` says.
  const long result = syscall(SYS_mbind, data, static_cast<unsigned long>(nbytes), mode, mask, kMostNodes + 1UL, 0U);
  return result == 0 ? 0 : errno;
}

#else

int bind_pages(const Pages&, void*, int64_t) { return ENOSYS; }

#endif

}  // namespace

void check(const Pages& pages) {
  if (pages.policy != Pages::Policy::first_touch && pages.nodes.empty()) {
    fail(kBad, "this placement of pages needs NUMA nodes");
  }
  for (const int node : pages.nodes) {
    if (node < 0 || node >= kMostNodes) fail(kBad, "there is no NUMA node ", node);
  }
}

int place(const Pages& pages, void* data, int64_t nbytes) {
  check(pages);
  if (nbytes <= 0) return 0;
  const int refused = pages.policy == Pages::Policy::first_touch ? 0 : bind_pages(pages, data, nbytes);
  // Locking touches every page, so the policy comes first.
  if (pages.lock && mlock(data, static_cast<size_t>(nbytes)) != 0) {
    fail("lock_refused", "the system refuses to lock ", nbytes, " bytes in memory: ", std::strerror(errno));
  }
  return refused;
}

}  // namespace infeng
