// Rows of a packed weight.
#pragma once

#include "params.h"

namespace infeng_cuda {

constexpr int kEmbedThreads = 256;
constexpr int kEmbedColumns = 1024;  // of a block

struct Embed {
  Panels weight;
  const int32_t* ids = nullptr;
  Matrix out;
};

}  // namespace infeng_cuda
