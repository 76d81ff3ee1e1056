// Named tuples of the module, for calls that take or return several values.
#pragma once

#include <pybind11/pybind11.h>

#include <utility>

namespace infeng {

class Record {
 public:
  // `fields`: the names of the fields, separated by spaces.
  Record(const char* name, const char* fields);

  // Adds the types of all records to the module. They live as long as the process.
  static void bind_all(pybind11::module_& m);

  template <class... Values>
  pybind11::object operator()(Values&&... values) const {
    return type_(std::forward<Values>(values)...);
  }

 private:
  const char* name_;
  const char* fields_;
  Record* next_;
  pybind11::handle type_;
  static Record* last_;
};

namespace records {

// One variable for each NamedTuple of _native.pyi, which says what the fields mean: records::cpu_info for CpuInfo.
#define RECORD(variable, name, fields) extern Record variable;
#include "records.inc"
#undef RECORD

}  // namespace records

}  // namespace infeng
