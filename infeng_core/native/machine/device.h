// A device on which a library's kernels compute, and pieces of its memory.
#pragma once

#include <infeng/abi.h>

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

namespace infeng {

class Device {
 public:
  // `library`: the name of the library that brings it.
  Device(std::string library, const infeng_device& abi) : library_(std::move(library)), abi_(abi) {}

  const std::string& library() const { return library_; }
  // Such as "NVIDIA H200"; or "" and why the machine has none.
  struct Description {
    std::string name, why;
  };
  Description describe() const;

  // All throw Error with the code of the library's status; allocate() also "out_of_memory".
  void* allocate(int64_t nbytes) const;
  void release(void* memory) const { abi_.release(memory); }
  void copy(void* to, const void* from, int64_t nbytes, int32_t direction) const;
  void upload(void* to, const void* from, int64_t nbytes) const { copy(to, from, nbytes, INFENG_COPY_TO_DEVICE); }
  void download(void* to, const void* from, int64_t nbytes) const { copy(to, from, nbytes, INFENG_COPY_TO_HOST); }
  void wait() const;
  // Bytes that are free, and all bytes.
  std::pair<int64_t, int64_t> memory() const;

 private:
  [[noreturn]] void refuse(infeng_status status, const char* what, const char* message) const;

  const std::string library_;
  const infeng_device abi_;
};

using DevicePtr = std::shared_ptr<const Device>;

// Zeroed memory of a device; it is released with the object.
class DeviceMemory {
 public:
  DeviceMemory(DevicePtr device, int64_t nbytes);
  ~DeviceMemory();
  DeviceMemory(DeviceMemory&& other) noexcept;
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  std::byte* data() const { return data_; }
  int64_t nbytes() const { return nbytes_; }
  const Device& device() const { return *device_; }

 private:
  DevicePtr device_;
  std::byte* data_ = nullptr;
  int64_t nbytes_ = 0;
};

}  // namespace infeng
