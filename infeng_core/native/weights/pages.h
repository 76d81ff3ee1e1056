// On which NUMA nodes the pages of a mapping lie, and whether they may leave memory. Their bytes do not depend on it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace infeng {

struct Pages {
  enum class Policy {
    first_touch,  // the node of the thread that touches a page first; what the system does anyway
    prefer,       // the nodes named, others when these are full
    interleave    // the nodes named, in turn
  };
  Policy policy = Policy::first_touch;
  std::vector<int> nodes;
  bool lock = false;  // in memory from now on, never swapped out
};

// Throws Error "invalid_argument" where the policy needs nodes and has none, or a node cannot exist.
void check(const Pages& pages);

// For a mapping from a page's beginning on. The policy decides about pages that nobody touched yet. Returns 0, or the
// errno with which the system refused the policy: a placement only saves time, so nothing else follows from that.
// Throws Error "lock_refused".
int place(const Pages& pages, void* data, int64_t nbytes);

}  // namespace infeng
