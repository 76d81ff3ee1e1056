// The device that kernels run on: a GPU through its driver (driver.cc), or the emulated one (emulated.cc).
#pragma once

#include <infeng/abi.h>

#include <cstdint>

namespace infeng_cuda {

// A kernel of kernels/*.cu by its name. Static objects only: the device looks a name up once.
struct Entry {
  const char* name;
  void* found = nullptr;  // the device's handle
  int64_t shared = 0;     // the most dynamic shared memory that it has asked for
};

struct Grid {
  int64_t x = 1, y = 1, z = 1;  // blocks; a launch with none does nothing
};

// Queues a kernel behind all that was queued before. `shared`: bytes of dynamic shared memory. `params` is copied.
infeng_status launch_bytes(Entry& entry, const Grid& grid, unsigned threads, int64_t shared, const void* params,
                           int64_t bytes, infeng_worker* worker);

template <class Params>
infeng_status launch(Entry& entry, const Grid& grid, unsigned threads, const Params& params, infeng_worker* worker,
                     int64_t shared = 0) {
  static_assert(sizeof(Params) <= 32764, "a launch takes 32,764 bytes of parameters");
  return launch_bytes(entry, grid, threads, shared, &params, sizeof params, worker);
}

// Scratch memory of the device of at least `bytes`, which stays until it is asked for more. Its content is that of the
// last kernel; kernels run in order, so each may use it. An op has a piece of its own, and products on their way to
// EPILOGUE another. NULL without memory.
enum class Scratch : int { op, product };
void* scratch(int64_t bytes, infeng_worker* worker, Scratch piece = Scratch::op);
int64_t room(int64_t bytes);  // how many bytes scratch of at least `bytes` is given

int64_t multiprocessors();

// Stores an error text for the host and returns the status.
infeng_status fail(infeng_worker* worker, infeng_status status, const char* text);

}  // namespace infeng_cuda
