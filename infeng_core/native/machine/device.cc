#include "machine/device.h"

#include <infeng/extension/error.h>

namespace infeng {
namespace {

// A worker for calls outside of steps: it has room for a message only.
struct Caller {
  char message[200] = {};
  infeng_worker worker{sizeof(infeng_worker), 0, 1, sizeof message, nullptr, nullptr, message, nullptr};
};

}  // namespace

void Device::refuse(infeng_status status, const char* what, const char* message) const {
  fail(status_code(status), library_, ": the device cannot ", what, ": ", message, " (status ", status, ")");
}

Device::Description Device::describe() const {
  char text[256] = {};
  const infeng_status status = abi_.describe(text, sizeof text);
  text[sizeof text - 1] = '\0';
  return status == INFENG_OK ? Description{text, ""} : Description{"", text};
}

void* Device::allocate(int64_t nbytes) const {
  Caller caller;
  void* memory = nullptr;
  const infeng_status status = abi_.allocate(nbytes > 0 ? nbytes : 1, &memory, &caller.worker);
  if (status == INFENG_OUT_OF_RANGE) {
    fail("out_of_memory", library_, ": the device has no room for ", nbytes, " bytes more: ", caller.message,
         "; free some or ask for less");
  }
  if (status != INFENG_OK || memory == nullptr) refuse(status, "give memory", caller.message);
  return memory;
}

void Device::copy(void* to, const void* from, int64_t nbytes, int32_t direction) const {
  if (nbytes == 0) return;
  Caller caller;
  const infeng_status status = abi_.copy(to, from, nbytes, direction, &caller.worker);
  if (status != INFENG_OK) refuse(status, "copy", caller.message);
}

void Device::wait() const {
  Caller caller;
  const infeng_status status = abi_.wait(&caller.worker);
  if (status != INFENG_OK) refuse(status, "end the step", caller.message);
}

std::pair<int64_t, int64_t> Device::memory() const {
  std::pair<int64_t, int64_t> bytes{0, 0};
  const infeng_status status = abi_.memory(&bytes.first, &bytes.second);
  if (status != INFENG_OK) refuse(status, "say how much memory it has", "no message");
  return bytes;
}

DeviceMemory::DeviceMemory(DevicePtr device, int64_t nbytes)
    : device_(std::move(device)), data_(static_cast<std::byte*>(device_->allocate(nbytes))), nbytes_(nbytes) {}

DeviceMemory::~DeviceMemory() {
  if (data_ != nullptr) device_->release(data_);
}

DeviceMemory::DeviceMemory(DeviceMemory&& other) noexcept
    : device_(std::move(other.device_)), data_(std::exchange(other.data_, nullptr)), nbytes_(other.nbytes_) {}

}  // namespace infeng
