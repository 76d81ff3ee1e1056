// Weights in the private layouts of kernels.
#pragma once

#include <memory>

#include "library/library.h"
#include "weights/pages.h"
#include "weights/weight.h"

namespace infeng {

// Returns `weight` itself, or a copy in the layout that the kernel asks for, or in the memory of its device. All
// programs share one copy for each library, weight and layout; it is freed with its last holder.
std::shared_ptr<const Weight> in_layout_of(const Kernel& kernel, const std::shared_ptr<const Weight>& weight,
                                           const Pages& pages = {});

}  // namespace infeng
