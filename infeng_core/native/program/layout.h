// Weights in the private layouts of kernels.
#pragma once

#include <memory>

#include "library/library.h"
#include "weights/pages.h"
#include "weights/weight.h"

namespace infeng {

// `weight` itself, or a copy in the layout that the kernel asks for. All ops, programs and kernels of a library that
// want the same weight in the same layout share one copy, which lives as long as one of them.
std::shared_ptr<const Weight> in_layout_of(const Kernel& kernel, const std::shared_ptr<const Weight>& weight,
                                           const Pages& pages = {});

}  // namespace infeng
