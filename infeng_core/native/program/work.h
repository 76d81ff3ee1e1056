// Multiply-adds and bytes of one call of an op, for profiles.
#pragma once

#include <cstdint>

namespace infeng {

struct Op;

struct Work {
  int64_t macs = 0;   // multiply-adds of matrix products
  int64_t bytes = 0;  // of weights, adapters, keys and values, each read or written once
};

// Zeros for an op that has no products and reads no weights.
Work work_of(const Op& op);

}  // namespace infeng
