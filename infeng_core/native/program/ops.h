// Helpers of the functions that add ops.
#pragma once

#include <infeng/extension/error.h>

#include <cstdint>

namespace infeng {

// Up to this many elements one worker alone takes less time than a barrier.
constexpr int64_t kSoloElements = 16384;

inline void check_apart(const char* op, int x, int out) {
  if (x == out) fail(kBad, op, ": buffer ", x, " is both input and output; use two buffers");
}

}  // namespace infeng
