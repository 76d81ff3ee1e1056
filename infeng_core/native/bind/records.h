// NamedTuples of the module: what a call takes or returns beside single values, each value with a name.
#pragma once

#include <pybind11/pybind11.h>

#include <utility>

namespace infeng {

class Record {
 public:
  // `fields`: their names, in order, with spaces between them.
  constexpr Record(const char* name, const char* fields) : name_(name), fields_(fields) {}

  // Makes the type and puts it into the module. It lives as long as the process.
  void bind(pybind11::module_& m);

  template <class... Values>
  pybind11::object operator()(Values&&... values) const {
    return type_(std::forward<Values>(values)...);
  }

 private:
  const char* name_;
  const char* fields_;
  pybind11::handle type_;
};

namespace records {

extern Record activation_view, adapter_embedding, adapter_part, adapter_tensor, changes, code_grid, codes, cpu_info,
    filters, masks, minima_grid, op_info, operand, profile_reading, rope_tables, routing_view, sub_grid, units,
    weight_format_info, workspace;

}  // namespace records

}  // namespace infeng
