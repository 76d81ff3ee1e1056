// What both devices have in common.
#include "device.h"

#include <cstdio>
#include <mutex>

#include "device_abi.h"

namespace infeng_cuda {

void* scratch(int64_t bytes, infeng_worker* worker, Scratch piece) {
  static std::mutex& mutex = *new std::mutex;
  static void* all_held[2] = {};
  static int64_t sizes[2] = {};
  void*& held = all_held[static_cast<int>(piece)];
  int64_t& size = sizes[static_cast<int>(piece)];
  const std::lock_guard lock(mutex);
  if (bytes <= size) return held;
  if (held != nullptr) kDevice.release(held);  // waits for kernels that use it
  held = nullptr;
  size = 0;
  if (kDevice.allocate(room(bytes), &held, worker) != INFENG_OK) return nullptr;
  size = room(bytes);
  return held;
}

infeng_status fail(infeng_worker* worker, infeng_status status, const char* text) {
  if (worker != nullptr && worker->message != nullptr && worker->message_size > 0) {
    std::snprintf(worker->message, static_cast<size_t>(worker->message_size), "%s", text);
  }
  return status;
}

}  // namespace infeng_cuda
