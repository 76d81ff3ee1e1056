// A GPU through its driver's own interface: libcuda.so.1 is loaded when the device is first asked for, and nothing else
// of CUDA is needed at run time. Signatures are those of the CUDA Driver API, version 12 or newer.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "device.h"
#include "device_abi.h"
#include "images.h"

namespace infeng_cuda {
namespace {

using Result = int;
using Pointer = unsigned long long;
enum : int { kSuccess = 0, kOutOfMemory = 2 };
enum : int { kMultiprocessors = 16, kMajor = 75 };  // attributes of a device
constexpr int kMostDynamicShared = 8;               // an attribute of a function

// CUlaunchConfig with CUlaunchAttributes.
struct LaunchAttribute {
  int id;
  int padding;
  union {
    int flag;
    char bytes[64];
  };
};
struct LaunchConfig {
  unsigned grid[3];
  unsigned block[3];
  unsigned shared;
  void* stream;
  LaunchAttribute* attributes;
  unsigned attribute_count;
};
constexpr int kMayBeginEarly = 6;    // CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION: see follow() in simt.h
constexpr int kBeginsEarlyFrom = 9;  // the first generation of GPUs that can

struct Driver {
  Result (*init)(unsigned) = nullptr;
  Result (*device_get)(int*, int) = nullptr;
  Result (*device_name)(char*, int, int) = nullptr;
  Result (*device_attribute)(int*, int, int) = nullptr;
  Result (*retain)(void**, int) = nullptr;
  Result (*set_current)(void*) = nullptr;
  Result (*load_image)(void**, const void*) = nullptr;
  Result (*find_function)(void**, void*, const char*) = nullptr;
  Result (*function_attribute)(void*, int, int) = nullptr;
  Result (*allocate)(Pointer*, size_t) = nullptr;
  Result (*release)(Pointer) = nullptr;
  Result (*allocate_host)(void**, size_t) = nullptr;
  Result (*clear)(Pointer, unsigned char, size_t, void*) = nullptr;
  Result (*to_device)(Pointer, const void*, size_t, void*) = nullptr;
  Result (*to_host)(void*, Pointer, size_t, void*) = nullptr;
  Result (*on_device)(Pointer, Pointer, size_t, void*) = nullptr;
  Result (*make_stream)(void**, unsigned) = nullptr;
  Result (*wait_stream)(void*) = nullptr;
  Result (*launch)(const LaunchConfig*, void*, void**, void**) = nullptr;
  Result (*memory)(size_t*, size_t*) = nullptr;
  Result (*error_text)(Result, const char**) = nullptr;

  std::string why;  // it cannot be used
};

Driver load_driver() {
  Driver d;
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    d.why = std::string("no NVIDIA driver: ") + dlerror();
    return d;
  }
  const auto take = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    if (function == nullptr) d.why = std::string("the NVIDIA driver is too old: it has no ") + name;
  };
  take(d.init, "cuInit");
  take(d.device_get, "cuDeviceGet");
  take(d.device_name, "cuDeviceGetName");
  take(d.device_attribute, "cuDeviceGetAttribute");
  take(d.retain, "cuDevicePrimaryCtxRetain");
  take(d.set_current, "cuCtxSetCurrent");
  take(d.load_image, "cuModuleLoadData");
  take(d.find_function, "cuModuleGetFunction");
  take(d.function_attribute, "cuFuncSetAttribute");
  take(d.allocate, "cuMemAlloc_v2");
  take(d.release, "cuMemFree_v2");
  take(d.allocate_host, "cuMemAllocHost_v2");
  take(d.clear, "cuMemsetD8Async");
  take(d.to_device, "cuMemcpyHtoDAsync_v2");
  take(d.to_host, "cuMemcpyDtoHAsync_v2");
  take(d.on_device, "cuMemcpyDtoDAsync_v2");
  take(d.make_stream, "cuStreamCreate");
  take(d.wait_stream, "cuStreamSynchronize");
  take(d.launch, "cuLaunchKernelEx");
  take(d.memory, "cuMemGetInfo_v2");
  take(d.error_text, "cuGetErrorString");
  return d;
}

const Driver& driver() {
  static const Driver& loaded = *new Driver(load_driver());
  return loaded;
}

std::string text_of(Result result) {
  const char* text = nullptr;
  if (driver().error_text != nullptr) driver().error_text(result, &text);
  return "error " + std::to_string(result) + (text == nullptr ? "" : std::string(": ") + text);
}

// The GPU that this process uses. It is opened once and never closed: the driver does so when the process ends.
class Gpu {
 public:
  std::string name;
  std::string why;  // it cannot be used
  int multiprocessors = 0;
  int generation = 0;
  void* stream = nullptr;
  bool is_in_order = std::getenv("CUDA_IN_ORDER_OF_INFENG") != nullptr;  // to measure what an early begin gains

  Gpu() {
    if (why = driver().why; !why.empty()) return;
    const char* const wanted = std::getenv("CUDA_DEVICE_OF_INFENG");
    const int number = wanted == nullptr ? 0 : std::atoi(wanted);
    int device = 0;
    char text[200] = {};
    if (!holds(driver().init(0), "it does not start") || !holds(driver().device_get(&device, number), "no such GPU") ||
        !holds(driver().device_name(text, sizeof text, device), "it has no name")) {
      return;
    }
    name = text;
    device_ = device;
  }

  // Makes this thread use the GPU; false with `why` if it cannot be.
  bool enter() {
    if (name.empty()) return false;
    static thread_local bool entered = false;
    if (entered) return true;
    {
      const std::lock_guard lock(mutex_);
      if (context_ == nullptr && !open()) return false;
    }
    return entered = holds(driver().set_current(context_), "its context");
  }

  void* function(const char* wanted) {
    const std::lock_guard lock(mutex_);
    for (void* const module : modules_) {
      void* found = nullptr;
      if (driver().find_function(&found, module, wanted) == kSuccess) return found;
    }
    return nullptr;
  }

 private:
  bool holds(Result result, const char* what) {
    if (result != kSuccess) why = std::string(what) + ": " + text_of(result);
    return result == kSuccess;
  }

  bool open() {
    if (!holds(driver().retain(&context_, device_), "its context") ||
        !holds(driver().set_current(context_), "its context") ||
        !holds(driver().device_attribute(&multiprocessors, kMultiprocessors, device_), "its attributes") ||
        !holds(driver().device_attribute(&generation, kMajor, device_), "its attributes") ||
        !holds(driver().make_stream(&stream, 1), "a stream")) {  // 1: beside the default stream
      context_ = nullptr;
      return false;
    }
    for (const Image& image : images()) {
      void* module = nullptr;
      if (!holds(driver().load_image(&module, image.data), "the kernels do not fit this GPU or its driver")) {
        context_ = nullptr;
        return false;
      }
      modules_.push_back(module);
    }
    return true;
  }

  std::mutex mutex_;
  int device_ = 0;
  void* context_ = nullptr;
  std::vector<void*> modules_;
};

Gpu& gpu() {
  static Gpu& only = *new Gpu;
  return only;
}

infeng_status check(Result result, const char* what, infeng_worker* worker) {
  if (result == kSuccess) return INFENG_OK;
  return fail(worker, result == kOutOfMemory ? INFENG_OUT_OF_RANGE : INFENG_INTERNAL,
              (std::string(what) + ": " + text_of(result)).c_str());
}

infeng_status enter(infeng_worker* worker) {
  return gpu().enter() ? INFENG_OK : fail(worker, INFENG_INTERNAL, gpu().why.c_str());
}

Pointer pointer(const void* memory) { return static_cast<Pointer>(reinterpret_cast<uintptr_t>(memory)); }

infeng_status describe(char* text, int32_t size) {
  const bool is_there = !gpu().name.empty();
  std::snprintf(text, static_cast<size_t>(size), "%s", (is_there ? gpu().name : gpu().why).c_str());
  return is_there ? INFENG_OK : INFENG_UNIMPLEMENTED;
}

infeng_status allocate(int64_t bytes, void** out, infeng_worker* worker) {
  if (const infeng_status status = enter(worker)) return status;
  Pointer memory = 0;
  const auto size = static_cast<size_t>(bytes);
  if (const infeng_status status = check(driver().allocate(&memory, size), "memory of the GPU", worker)) return status;
  *out = reinterpret_cast<void*>(static_cast<uintptr_t>(memory));
  return check(driver().clear(memory, 0, size, gpu().stream), "clearing memory", worker);
}

void release(void* memory) {
  if (enter(nullptr) == INFENG_OK) driver().release(pointer(memory));
}

// Copies to the host go through memory that the GPU can write to directly.
class Landing {
 public:
  infeng_status copy(void* to, Pointer from, size_t bytes, infeng_worker* worker) {
    const std::lock_guard lock(mutex_);
    if (memory_ == nullptr) {
      if (const infeng_status status = check(driver().allocate_host(&memory_, kBytes), "pinned memory", worker)) {
        return status;
      }
    }
    for (size_t done = 0; done < bytes; done += kBytes) {
      const size_t part = bytes - done < kBytes ? bytes - done : kBytes;
      const infeng_status status =
          check(driver().to_host(memory_, from + done, part, gpu().stream), "copying to the host", worker);
      if (status != INFENG_OK) return status;
      if (const infeng_status late = check(driver().wait_stream(gpu().stream), "the GPU", worker)) return late;
      std::memcpy(static_cast<char*>(to) + done, memory_, part);
    }
    return INFENG_OK;
  }

 private:
  static constexpr size_t kBytes = size_t{4} << 20;
  std::mutex mutex_;
  void* memory_ = nullptr;
};

infeng_status copy(void* to, const void* from, int64_t bytes, int32_t direction, infeng_worker* worker) {
  if (const infeng_status status = enter(worker)) return status;
  static Landing& landing = *new Landing;
  const auto size = static_cast<size_t>(bytes);
  switch (direction) {
    case INFENG_COPY_TO_DEVICE:  // returns once pageable memory has been read
      return check(driver().to_device(pointer(to), from, size, gpu().stream), "copying to the GPU", worker);
    case INFENG_COPY_TO_HOST:
      return landing.copy(to, pointer(from), size, worker);
    case INFENG_COPY_ON_DEVICE:
      return check(driver().on_device(pointer(to), pointer(from), size, gpu().stream), "copying on the GPU", worker);
    default:
      return fail(worker, INFENG_INVALID_ARGUMENT, "a copy of unknown direction");
  }
}

infeng_status wait(infeng_worker* worker) {
  if (const infeng_status status = enter(worker)) return status;
  return check(driver().wait_stream(gpu().stream), "the GPU", worker);
}

infeng_status memory(int64_t* free_bytes, int64_t* total_bytes) {
  size_t free = 0, total = 0;
  if (enter(nullptr) != INFENG_OK || driver().memory(&free, &total) != kSuccess) return INFENG_INTERNAL;
  *free_bytes = static_cast<int64_t>(free);
  *total_bytes = static_cast<int64_t>(total);
  return INFENG_OK;
}

}  // namespace

const infeng_device kDevice = {
    {sizeof(infeng_device), INFENG_EXTENSION_DEVICE, nullptr}, describe, allocate, release, copy, wait, memory};
const char* const kLibrary = "cuda";

infeng_status launch_bytes(Entry& entry, const Grid& grid, unsigned threads, int64_t shared, const void* params,
                           int64_t bytes, infeng_worker* worker) {
  static_cast<void>(bytes);
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return INFENG_OK;
  if (const infeng_status status = enter(worker)) return status;
  if (entry.found == nullptr) {
    entry.found = gpu().function(entry.name);
    if (entry.found == nullptr) return fail(worker, INFENG_INTERNAL, (std::string("no kernel ") + entry.name).c_str());
  }
  if (shared > entry.shared) {  // more than is usual, together with what the kernel has of its own
    const infeng_status status =
        check(driver().function_attribute(entry.found, kMostDynamicShared, static_cast<int>(shared)), "shared memory",
              worker);
    if (status != INFENG_OK) return status;
    entry.shared = shared;
  }
  void* list[] = {const_cast<void*>(params)};
  LaunchAttribute early{kMayBeginEarly, 0, {1}};
  const LaunchConfig config{
      {static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y), static_cast<unsigned>(grid.z)},
      {threads, 1, 1},
      static_cast<unsigned>(shared),
      gpu().stream,
      &early,
      gpu().generation >= kBeginsEarlyFrom && !gpu().is_in_order ? 1u : 0u};
  return check(driver().launch(&config, entry.found, list, nullptr), entry.name, worker);
}

int64_t room(int64_t bytes) { return bytes + bytes / 4; }  // to grow seldom: each time waits for the GPU

int64_t multiprocessors() { return gpu().multiprocessors > 0 ? gpu().multiprocessors : 1; }

}  // namespace infeng_cuda
