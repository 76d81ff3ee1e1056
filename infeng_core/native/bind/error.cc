// Translates infeng::Error to Python's NativeError, with its code as an attribute.
#include <infeng/extension/error.h>

#include <cstring>

#include "bind/bindings.h"

namespace py = pybind11;

namespace infeng {
namespace {

PyObject* native_error = nullptr;  // lives as long as the interpreter

void translate(std::exception_ptr pointer) {
  try {
    if (pointer) std::rethrow_exception(pointer);
  } catch (const Error& error) {
    try {
      py::object instance = py::reinterpret_borrow<py::object>(native_error)(
          py::reinterpret_steal<py::object>(PyUnicode_DecodeUTF8(error.what(), std::strlen(error.what()), "replace")));
      instance.attr("code") = error.code();
      PyErr_SetObject(native_error, instance.ptr());
    } catch (py::error_already_set& nested) {
      nested.restore();
    }
  }
}

}  // namespace

void bind_error(py::module_& m) {
  const py::object base = py::module_::import("infeng_core.errors").attr("InfengError");
  native_error = PyErr_NewExceptionWithDoc(
      "infeng_core._native.NativeError",
      "A failure below Python: ``code`` is a short reason such as \"missing_symbol\", ``str()`` the text.",
      py::make_tuple(base, py::reinterpret_borrow<py::object>(PyExc_RuntimeError)).ptr(), nullptr);
  if (native_error == nullptr) throw py::error_already_set();
  m.attr("NativeError") = py::reinterpret_borrow<py::object>(native_error);
  py::reinterpret_borrow<py::object>(native_error).attr("code") = "internal";
  py::register_exception_translator(&translate);
}

}  // namespace infeng
