#include "program/layout.h"

#include <infeng/extension/error.h>

#include <map>
#include <mutex>
#include <tuple>

#include "machine/fpstate.h"
#include "vocabulary/names.h"
#include "weights/arena.h"

namespace infeng {
namespace {

struct PackedWeight : Weight {
  PackedWeight(int64_t nbytes, const Pages& pages) : arena(nbytes, true, pages) {}
  mutable Arena arena;                   // mutable: a later holder may lock its pages
  std::shared_ptr<const Weight> source;  // held because its address is part of the copy's key
};

struct UploadedWeight : Weight {
  UploadedWeight(const Weight& from, const DevicePtr& device)
      : Weight(from), memory(device, from.abi.panels * from.abi.panel_bytes) {
    device->upload(memory.data(), from.abi.data, memory.nbytes());
    abi.data = memory.data();
    this->device = device.get();
  }
  DeviceMemory memory;
};

// Programs share a device's copy of a weight, too.
std::shared_ptr<const Weight> on_device(const DevicePtr& device, const std::shared_ptr<const Weight>& weight) {
  if (weight->device == device.get()) return weight;
  using Key = std::tuple<const Device*, const void*, uint32_t, int64_t, int64_t>;
  static auto& copies = *new std::map<Key, std::weak_ptr<const UploadedWeight>>;
  static auto& mutex = *new std::mutex;
  const std::lock_guard lock(mutex);
  const infeng_weight& abi = weight->abi;
  auto& known = copies[Key(device.get(), abi.data, abi.format, abi.panels, abi.k)];
  if (auto copy = known.lock()) return copy;
  const auto copy = std::make_shared<const UploadedWeight>(*weight, device);
  known = copy;
  std::erase_if(copies, [](const auto& each) { return each.second.expired(); });
  return copy;
}

}  // namespace

std::shared_ptr<const Weight> in_layout_of(const Kernel& kernel, const std::shared_ptr<const Weight>& weight,
                                           const Pages& pages) {
  const infeng_kernel& abi = kernel.abi;
  if (kernel.library->device != nullptr) return on_device(kernel.library->device, weight);
  if (abi.pack_size == nullptr || abi.pack == nullptr) return weight;
  uint64_t layout = 0;
  const int64_t nbytes = abi.pack_size(&weight->abi, &layout);
  if (layout == 0) return weight;
  if (nbytes <= 0) fail("internal", kernel.full_name(), ": a weight in its layout would have ", nbytes, " bytes");

  // Layout ids are unique within a library only.
  using Key = std::tuple<const Library*, const void*, uint32_t, int64_t, int64_t, uint64_t>;
  static auto& copies = *new std::map<Key, std::weak_ptr<const PackedWeight>>;
  static auto& mutex = *new std::mutex;
  const std::lock_guard lock(mutex);
  std::weak_ptr<const PackedWeight>& known =
      copies[Key(kernel.library, weight->abi.data, weight->abi.format, weight->abi.panels, weight->abi.k, layout)];
  if (auto copy = known.lock()) {
    if (pages.lock) copy->arena.place(pages);
    return copy;
  }

  auto copy = std::make_shared<PackedWeight>(nbytes, pages);
  char message[200] = {};
  infeng_worker worker{sizeof(infeng_worker), 0, 1, sizeof message, nullptr, nullptr, message, nullptr};
  const FpGuard saved;
  fp_write(kFpContract);
  const infeng_status status = abi.pack(&weight->abi, copy->arena.data(), nbytes, &worker);
  if (status != INFENG_OK) {
    message[sizeof message - 1] = '\0';
    fail(status_code(status), kernel.full_name(), ": cannot convert a weight: status ", status, " (",
         status_code(status), ") ", message);
  }
  copy->abi = weight->abi;
  copy->abi.layout = layout;
  copy->abi.panel_bytes = nbytes / weight->abi.panels;
  copy->abi.data = copy->arena.data();
  copy->source = weight;
  known = copy;
  std::erase_if(copies, [](const auto& each) { return each.second.expired(); });  // adapters bring weights and go
  return copy;
}

}  // namespace infeng
