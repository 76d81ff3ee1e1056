// Python bindings that copy whole KV blocks while no step runs.
#include <infeng/extension/error.h>

#include <vector>

#include "bind/bindings.h"
#include "program/kv_cache.h"
#include "program/program.h"

namespace py = pybind11;

namespace infeng {
namespace {

// Copied, because another Python thread may write to the array once the GIL is released.
std::vector<int32_t> block_numbers(const py::array& array, const char* what) {
  if (!array.dtype().equal(py::dtype::of<int32_t>()) || !(array.flags() & py::array::c_style) || array.ndim() != 1) {
    fail(kBad, what, ": needs a contiguous int32 array of one dimension");
  }
  const auto* first = static_cast<const int32_t*>(array.data());
  return {first, first + array.size()};
}

}  // namespace

py::object read_blocks(const Program& program, const KvCache& cache, const py::array& blocks) {
  const std::vector<int32_t> numbers = block_numbers(blocks, "blocks");
  py::array_t<uint8_t> data({static_cast<py::ssize_t>(numbers.size()), static_cast<py::ssize_t>(cache.block_bytes())});
  auto* bytes = reinterpret_cast<std::byte*>(data.mutable_data());
  {
    const py::gil_scoped_release release;
    program.between_steps([&] { cache.read_blocks(numbers, bytes, cache.block_bytes()); });
  }
  return std::move(data);
}

void write_blocks(const Program& program, KvCache& cache, const py::array& blocks, const py::array& data) {
  const std::vector<int32_t> numbers = block_numbers(blocks, "blocks");
  const auto count = static_cast<py::ssize_t>(numbers.size());
  if (!data.dtype().equal(py::dtype::of<uint8_t>()) || data.ndim() != 2 || data.shape(0) != count ||
      data.shape(1) != cache.block_bytes() || (count > 0 && data.strides(1) != 1)) {
    fail(kBad, "data: needs a uint8 array of shape (", count, ", ", cache.block_bytes(), ") with contiguous rows");
  }
  const auto* bytes = static_cast<const std::byte*>(data.data());
  const int64_t stride = data.strides(0);
  const py::gil_scoped_release release;
  program.between_steps([&] { cache.write_blocks(numbers, bytes, stride); });
}

void copy_blocks(const Program& program, KvCache& cache, const py::array& source, const py::array& target) {
  const std::vector<int32_t> from = block_numbers(source, "source");
  const std::vector<int32_t> to = block_numbers(target, "target");
  const py::gil_scoped_release release;
  program.between_steps([&] { cache.copy_blocks(from, to); });
}

}  // namespace infeng
