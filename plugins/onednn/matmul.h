// Products of oneDNN: out = x W^T for one weight and any number of rows. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdint.h>

#include "vendor.h"

namespace infeng::onednn {

enum class Type { f32, bf16 };

struct Shape {
  int64_t n;  // outputs, a multiple of 16
  int64_t k;
  Type type;  // of the weight, and of x as oneDNN multiplies it
};

// How oneDNN wants the weight of a shape, whatever the number of rows; NULL if it has no product of this type.
dnnl_memory_desc_t packed_weight(const Shape& shape);

// Converts a plain weight, k lines of n values of its type, into that form.
bool pack(const Shape& shape, const void* plain, void* packed);

// The products of one op. A product is compiled for its number of rows; the latest ones are kept. Calls come from one
// thread at a time.
class Products {
 public:
  explicit Products(const Shape& shape) : shape_(shape) {}
  ~Products();
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;

  // out[rows][n], `out_stride` floats apart, from x[rows][k], `x_stride` floats apart. `narrow` has room for rows * k
  // values of bf16, or is NULL for f32.
  bool run(int64_t rows, const float* x, int64_t x_stride, void* narrow, const void* packed, float* out,
           int64_t out_stride);

 private:
  struct Product {
    int64_t rows = 0, x_stride = 0, out_stride = 0;
    dnnl_primitive_t narrows = nullptr;  // x in bf16
    dnnl_primitive_t multiplies = nullptr;
    dnnl_memory_desc_t x = nullptr, input = nullptr, weight = nullptr, out = nullptr;
    uint64_t used = 0;
  };
  static constexpr int kKept = 16;

  const Product* product(int64_t rows, int64_t x_stride, int64_t out_stride);
  bool make(Product& product) const;
  static void clear(Product& product);

  Shape shape_;
  uint64_t clock_ = 0;
  Product products_[kKept];
};

}  // namespace infeng::onednn
