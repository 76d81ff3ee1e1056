// Python bindings of adapters: arrays become the borrowed bytes of an AdapterSpec, which Adapter checks and copies.
#include "program/adapter.h"

#include <infeng/extension/error.h>

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include "bind/bindings.h"
#include "program/program.h"
#include "vocabulary/names.h"

namespace py = pybind11;
using namespace py::literals;

namespace infeng {
namespace {

Bytes bytes_of(const py::handle& object, const char* dtype, const char* what) {
  if (object.is_none()) return {};
  const bool is_array = py::isinstance<py::array>(object);
  const auto array = is_array ? py::reinterpret_borrow<py::array>(object) : py::array();
  if (!is_array || !array.dtype().equal(py::dtype(dtype)) || !(array.flags() & py::array::c_style)) {
    fail(kBad, what, ": needs a contiguous ", py::str(py::dtype(dtype)).cast<std::string>(), " array");
  }
  return {array.data(), array.nbytes()};
}

const char* numpy_of(uint32_t dtype) {
  if (dtype == INFENG_I8T4) return "u1";
  return dtype == INFENG_F32 ? "f4" : dtype == INFENG_BF16 ? "u2" : "i1";
}

py::tuple fields(const py::handle& object, size_t count, const char* what) {
  if (!py::isinstance<py::tuple>(object) || py::len(object) != count) {
    fail(kBad, what, " of ", count, " fields is needed");
  }
  return py::reinterpret_borrow<py::tuple>(object);
}

AdapterSpec::Part part_of(const py::handle& object, uint32_t dtype) {
  const py::tuple t = fields(object, 9, "an AdapterPart");
  AdapterSpec::Part part;
  part.rank = t[0].cast<int64_t>();
  part.u_column = t[1].cast<int64_t>();
  part.first_panel = t[2].cast<int64_t>();
  part.panel_step = t[3].cast<int64_t>();
  part.panels = t[4].cast<int64_t>();
  part.b = bytes_of(t[5], numpy_of(dtype), "b");
  part.b_scale = bytes_of(t[6], "u2", "b_scale");
  part.row_scale = bytes_of(t[7], "f4", "row_scale");
  part.bias = bytes_of(t[8], "f4", "bias");
  return part;
}

AdapterSpec::Tensor tensor_of(const py::handle& object, uint32_t dtype) {
  const py::tuple t = fields(object, 5, "an AdapterTensor");
  AdapterSpec::Tensor tensor;
  tensor.name = t[0].cast<std::string>();
  tensor.rank = t[1].cast<int64_t>();
  tensor.a = bytes_of(t[2], "u1", "a");
  tensor.scaling = bytes_of(t[3], "f4", "scaling");
  for (const py::handle& part : t[4].cast<py::list>()) tensor.parts.push_back(part_of(part, dtype));
  return tensor;
}

AdapterSpec::Embedding embedding_of(const py::handle& object, uint32_t dtype) {
  const py::tuple t = fields(object, 4, "an AdapterEmbedding");
  AdapterSpec::Embedding embedding;
  embedding.rank = t[0].cast<int64_t>();
  embedding.a = bytes_of(t[1], "f4", "a of the embedding");
  embedding.scaling = t[2].cast<float>();
  embedding.part = part_of(t[3], dtype);
  return embedding;
}

}  // namespace

std::shared_ptr<Adapter> make_adapter(const Program& program, const std::string& dtype, const py::list& tensors,
                                      const py::object& embedding, const py::list& saved_tensors,
                                      const py::list& saved_vectors) {
  AdapterSpec spec;
  spec.dtype = number_of(Vocabulary::dtype, dtype);
  for (const py::handle& each : tensors) spec.tensors.push_back(tensor_of(each, spec.dtype));
  if (!embedding.is_none()) spec.embedding = embedding_of(embedding, spec.dtype);
  for (const py::handle& each : saved_tensors) {
    const py::tuple t = fields(each, 2, "a saved tensor");
    spec.saved_tensors.push_back({t[0].cast<std::string>(), t[1].cast<std::shared_ptr<Weight>>()});
  }
  for (const py::handle& each : saved_vectors) {
    const py::tuple t = fields(each, 2, "a saved vector");
    spec.saved_vectors.push_back({t[0].cast<std::string>(), bytes_of(t[1], "f4", "a saved vector")});
  }
  const py::gil_scoped_release release;  // the arguments keep the arrays alive
  return std::make_shared<Adapter>(program, spec);
}

void bind_adapter(py::module_& m) {
  py::class_<Adapter, std::shared_ptr<Adapter>>(
      m, "Adapter", "An adapter in memory of its own, freed with the last reference; see Program.adapter.")
      .def_property_readonly("nbytes", &Adapter::nbytes);
}

}  // namespace infeng
