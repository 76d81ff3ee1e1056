// Placement of pages on NUMA nodes, and locking them in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace infeng {

struct Pages {
  enum class Policy {
    first_touch,  // the node of the thread that touches a page first, which is the system's default
    prefer,       // `nodes`, or others when these are full
    interleave    // `nodes` in turn
  };
  Policy policy = Policy::first_touch;
  std::vector<int> nodes;
  bool lock = false;  // load all pages and never swap them out
};

// Throws Error "invalid_argument" if the policy needs nodes and has none, or a node cannot exist.
void check(const Pages& pages);

// Places a mapping that begins on a page boundary; the policy applies to pages that were not touched yet. Returns 0, or
// the errno with which the system refused the policy, which only costs speed. Throws Error "lock_refused".
int place(const Pages& pages, void* data, int64_t nbytes);

}  // namespace infeng
