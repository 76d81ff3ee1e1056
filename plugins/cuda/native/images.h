// The machine code of the kernels, one image for each source of kernels/, with code for several generations of GPUs.
#pragma once

#include <span>

namespace infeng_cuda {

struct Image {
  const void* data;
};

std::span<const Image> images();

}  // namespace infeng_cuda
