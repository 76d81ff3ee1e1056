// route and combine.
#pragma once

#include "params.h"

namespace infeng_cuda {

constexpr int kMostCopied = 4;   // arrays of an activation: x, q, scale, sum
constexpr int kFewRouted = 32;   // rows that one launch routes, a warp for each
constexpr int kMostChosen = 64;  // experts of a row
constexpr int kRouteThreads = 256;

// Rows of an array, which are copied to their places.
struct Copied {
  const uint8_t* from = nullptr;
  uint8_t* to = nullptr;
  int64_t from_stride = 0;  // bytes
  int64_t to_stride = 0;
  int32_t bytes = 0;  // of a row, a multiple of 4
};

struct Route {
  const float* logits = nullptr;
  int64_t logits_stride = 0;
  int32_t* chosen = nullptr;  // (rows, top_k) experts
  float* weights = nullptr;
  int32_t* places = nullptr;
  int32_t* begin = nullptr;
  int32_t rows = 0;
  int32_t experts = 0;
  int32_t top_k = 0;
  bool of_chosen = false;  // weights are shares of the chosen experts only
  int32_t count = 0;       // of arrays
  Copied arrays[kMostCopied];
};

struct Combine {
  Matrix x;
  Matrix out;
  const float* weights = nullptr;
  const int32_t* places = nullptr;
  Matrix shared;  // or no data
  Matrix gate;    // or no data
  int32_t top_k = 0;
  Steps steps;
};

}  // namespace infeng_cuda
