// SPDX-License-Identifier: Apache-2.0
#include "matmul.h"

#include <algorithm>

namespace infeng::onednn {
namespace {

constexpr int64_t kTypicalRows = 512;  // for which the form of a weight is asked

// The processor as oneDNN's device, and a stream of calls on it.
struct Device {
  dnnl_engine_t engine = nullptr;
  dnnl_stream_t stream = nullptr;
};

const Device* device() {
  static const Device* const device = []() -> const Device* {
    static Device made;
    const Vendor* const dnnl = vendor();
    if (dnnl == nullptr) return nullptr;
    if (dnnl->dnnl_engine_create(&made.engine, dnnl_cpu, 0) != dnnl_success) return nullptr;
    if (dnnl->dnnl_stream_create(&made.stream, made.engine, dnnl_stream_default_flags) != dnnl_success) return nullptr;
    return &made;
  }();
  return device;
}

dnnl_data_type_t data_type(Type type) { return type == Type::f32 ? dnnl_f32 : dnnl_bf16; }

dnnl_memory_desc_t rows_of(int64_t rows, int64_t columns, dnnl_data_type_t type, int64_t stride) {
  const dnnl_dims_t sizes = {rows, columns}, strides = {stride, 1};
  dnnl_memory_desc_t made = nullptr;
  vendor()->dnnl_memory_desc_create_with_strides(&made, 2, sizes, type, strides);
  return made;
}

dnnl_memory_desc_t any_weight(const Shape& shape) {
  const dnnl_dims_t sizes = {shape.k, shape.n};
  dnnl_memory_desc_t made = nullptr;
  vendor()->dnnl_memory_desc_create_with_tag(&made, 2, sizes, data_type(shape.type), dnnl_format_tag_any);
  return made;
}

// Wraps memory that is the caller's for the duration of a call.
class View {
 public:
  View(const_dnnl_memory_desc_t layout, const void* data) {
    vendor()->dnnl_memory_create(&memory_, layout, device()->engine, const_cast<void*>(data));
  }
  ~View() {
    if (memory_ != nullptr) vendor()->dnnl_memory_destroy(memory_);
  }
  View(const View&) = delete;
  View& operator=(const View&) = delete;
  dnnl_memory_t memory() const { return memory_; }

 private:
  dnnl_memory_t memory_ = nullptr;
};

bool execute(const_dnnl_primitive_t primitive, int count, const dnnl_exec_arg_t* args) {
  for (int i = 0; i < count; ++i)
    if (args[i].memory == nullptr) return false;
  const Vendor& dnnl = *vendor();
  return dnnl.dnnl_primitive_execute(primitive, device()->stream, count, args) == dnnl_success &&
         dnnl.dnnl_stream_wait(device()->stream) == dnnl_success;
}

dnnl_primitive_t compiled(dnnl_primitive_desc_t description) {
  dnnl_primitive_t made = nullptr;
  vendor()->dnnl_primitive_create(&made, description);
  return made;
}

dnnl_primitive_t reorder(const_dnnl_memory_desc_t from, const_dnnl_memory_desc_t to) {
  const Vendor& dnnl = *vendor();
  dnnl_primitive_desc_t description = nullptr;
  const dnnl_engine_t engine = device()->engine;
  if (dnnl.dnnl_reorder_primitive_desc_create(&description, from, engine, to, engine, nullptr) != dnnl_success)
    return nullptr;
  const dnnl_primitive_t made = compiled(description);
  dnnl.dnnl_primitive_desc_destroy(description);
  return made;
}

bool reordered(const_dnnl_memory_desc_t from, const void* in, const_dnnl_memory_desc_t to, void* out) {
  const dnnl_primitive_t primitive = reorder(from, to);
  if (primitive == nullptr) return false;
  const View source(from, in), result(to, out);
  const dnnl_exec_arg_t args[] = {{DNNL_ARG_FROM, source.memory()}, {DNNL_ARG_TO, result.memory()}};
  const bool done = execute(primitive, 2, args);
  vendor()->dnnl_primitive_destroy(primitive);
  return done;
}

dnnl_primitive_desc_t multiplication(const_dnnl_memory_desc_t input, const_dnnl_memory_desc_t weight,
                                     const_dnnl_memory_desc_t out) {
  dnnl_primitive_desc_t made = nullptr;
  vendor()->dnnl_matmul_primitive_desc_create(&made, device()->engine, input, weight, nullptr, out, nullptr);
  return made;
}

}  // namespace

dnnl_memory_desc_t packed_weight(const Shape& shape) {
  if (device() == nullptr) return nullptr;
  const Vendor& dnnl = *vendor();
  const dnnl_memory_desc_t input = rows_of(kTypicalRows, shape.k, data_type(shape.type), shape.k);
  const dnnl_memory_desc_t out = rows_of(kTypicalRows, shape.n, dnnl_f32, shape.n);
  const dnnl_memory_desc_t any = any_weight(shape);
  dnnl_memory_desc_t found = nullptr;
  if (const dnnl_primitive_desc_t description = multiplication(input, any, out)) {
    dnnl.dnnl_memory_desc_clone(&found, dnnl.dnnl_primitive_desc_query_md(description, dnnl_query_weights_md, 0));
    dnnl.dnnl_primitive_desc_destroy(description);
  }
  for (const dnnl_memory_desc_t one : {input, out, any}) dnnl.dnnl_memory_desc_destroy(one);
  return found;
}

bool pack(const Shape& shape, const void* plain, void* packed) {
  const dnnl_memory_desc_t to = packed_weight(shape);
  if (to == nullptr) return false;
  const dnnl_memory_desc_t from = rows_of(shape.k, shape.n, data_type(shape.type), shape.n);
  const bool done = reordered(from, plain, to, packed);
  vendor()->dnnl_memory_desc_destroy(from);
  vendor()->dnnl_memory_desc_destroy(to);
  return done;
}

Products::~Products() {
  for (Product& product : products_) clear(product);
}

void Products::clear(Product& product) {
  const Vendor& dnnl = *vendor();
  for (const dnnl_primitive_t one : {product.narrows, product.multiplies})
    if (one != nullptr) dnnl.dnnl_primitive_destroy(one);
  for (const dnnl_memory_desc_t one : {product.x, product.input, product.weight, product.out})
    if (one != nullptr) dnnl.dnnl_memory_desc_destroy(one);
  product = {};
}

bool Products::make(Product& product) const {
  product.x = rows_of(product.rows, shape_.k, dnnl_f32, product.x_stride);
  if (shape_.type == Type::bf16) {
    product.input = rows_of(product.rows, shape_.k, dnnl_bf16, shape_.k);
    product.narrows = reorder(product.x, product.input);
    if (product.narrows == nullptr) return false;
  } else {
    product.input = rows_of(product.rows, shape_.k, dnnl_f32, product.x_stride);
  }
  product.weight = packed_weight(shape_);
  product.out = rows_of(product.rows, shape_.n, dnnl_f32, product.out_stride);
  const dnnl_primitive_desc_t description = multiplication(product.input, product.weight, product.out);
  if (description == nullptr) return false;
  product.multiplies = compiled(description);
  vendor()->dnnl_primitive_desc_destroy(description);
  return product.multiplies != nullptr;
}

const Products::Product* Products::product(int64_t rows, int64_t x_stride, int64_t out_stride) {
  Product* const end = products_ + kKept;
  Product* found = std::find_if(products_, end, [&](const Product& one) {
    return one.rows == rows && one.x_stride == x_stride && one.out_stride == out_stride;
  });
  if (found == end) {
    found = std::min_element(products_, end, [](const Product& a, const Product& b) { return a.used < b.used; });
    clear(*found);
    found->rows = rows;
    found->x_stride = x_stride;
    found->out_stride = out_stride;
    if (!make(*found)) {
      clear(*found);
      return nullptr;
    }
  }
  found->used = ++clock_;
  return found;
}

bool Products::run(int64_t rows, const float* x, int64_t x_stride, void* narrow, const void* packed, float* out,
                   int64_t out_stride) {
  const Product* product = device() == nullptr ? nullptr : this->product(rows, x_stride, out_stride);
  if (product == nullptr) return false;
  const void* input = x;
  if (product->narrows != nullptr) {
    const View from(product->x, x), to(product->input, narrow);
    const dnnl_exec_arg_t args[] = {{DNNL_ARG_FROM, from.memory()}, {DNNL_ARG_TO, to.memory()}};
    if (!execute(product->narrows, 2, args)) return false;
    input = narrow;
  }
  const View source(product->input, input), weight(product->weight, packed), result(product->out, out);
  const dnnl_exec_arg_t args[] = {
      {DNNL_ARG_SRC, source.memory()}, {DNNL_ARG_WEIGHTS, weight.memory()}, {DNNL_ARG_DST, result.memory()}};
  return execute(product->multiplies, 3, args);
}

}  // namespace infeng::onednn
