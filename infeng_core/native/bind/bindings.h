// The bind functions of this folder, in the order of their calls in module.cc.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <memory>
#include <string>

namespace infeng {

void bind_error(pybind11::module_& m);  // first: the others throw
void bind_records(pybind11::module_& m);
void bind_cpu(pybind11::module_& m);
void bind_library(pybind11::module_& m);
void bind_memory(pybind11::module_& m);
void bind_profile(pybind11::module_& m);
void bind_program(pybind11::module_& m);
void bind_adapter(pybind11::module_& m);
void bind_formats(pybind11::module_& m);
void bind_rope(pybind11::module_& m);
void bind_sampling(pybind11::module_& m);

// Methods of Program (profile.cc).
class Program;
pybind11::object profile_read(const Program& program);
pybind11::list describe_ops(const Program& program);

// A method of Program (adapter.cc); the lists hold the records of _native.pyi.
class Adapter;
std::shared_ptr<Adapter> make_adapter(const Program& program, const std::string& dtype, const pybind11::list& tensors,
                                      const pybind11::object& embedding, const pybind11::list& saved_tensors,
                                      const pybind11::list& saved_vectors);

// Methods of Program (blocks.cc): copy blocks of a cache between two steps.
class KvCache;
pybind11::object read_blocks(const Program& program, const KvCache& cache, const pybind11::array& blocks);
void write_blocks(const Program& program, KvCache& cache, const pybind11::array& blocks, const pybind11::array& data);
void copy_blocks(const Program& program, KvCache& cache, const pybind11::array& source, const pybind11::array& target);

// The contiguous buffer of a Python object, released with the last copy of `owner`.
struct HeldBuffer {
  const std::byte* data = nullptr;
  int64_t nbytes = 0;
  std::shared_ptr<const void> owner;
};

// Throws Error "invalid_argument" naming `what` unless `object` offers contiguous bytes.
HeldBuffer hold_buffer(const pybind11::object& object, const char* what);

}  // namespace infeng
