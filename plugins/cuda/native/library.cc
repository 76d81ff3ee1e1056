// The description of this library: its kernels and its device.
#include <infeng/ops/library.h>

#include <iterator>

#include "device_abi.h"
#include "kernels.h"

extern "C" infeng_status infeng_library(const infeng_host* host, infeng_library_desc* out) {
  const infeng_status status = infeng_negotiate(host, out);
  if (status != INFENG_OK) return status;
#define INFENG_CUDA_ADDRESS(name) &cuda_##name,
  static const infeng_kernel* const kernels[] = {INFENG_CUDA_KERNELS(INFENG_CUDA_ADDRESS)};
  out->name = infeng_cuda::kLibrary;
  out->version = INFENG_CUDA_VERSION;
  out->next = &infeng_cuda::kDevice.head;
  out->kernels = kernels;
  out->kernel_count = static_cast<int32_t>(std::size(kernels));
  return INFENG_OK;
}
