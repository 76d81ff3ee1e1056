// What the builders of ops share.
#pragma once

#include <cstdint>

#include "error.h"

namespace infeng {

// Up to this many elements a worker alone is done before the others have come and gone through a barrier.
constexpr int64_t kSoloElements = 16384;

inline void check_apart(const char* op, int x, int out) {
  if (x == out) fail("invalid_argument", op, ": buffer ", x, " is both input and output; use two buffers");
}

}  // namespace infeng
