#include "bind/records.h"

#include "bind/bindings.h"

namespace py = pybind11;
using namespace py::literals;

namespace infeng {

Record* Record::last_ = nullptr;

Record::Record(const char* name, const char* fields) : name_(name), fields_(fields), next_(last_) { last_ = this; }

void Record::bind_all(py::module_& m) {
  const py::object namedtuple = py::module_::import("collections").attr("namedtuple");
  for (Record* record = last_; record != nullptr; record = record->next_) {
    const py::object type = namedtuple(record->name_, record->fields_, "module"_a = m.attr("__name__"));
    m.attr(record->name_) = type;
    record->type_ = type.inc_ref();
  }
}

namespace records {

#define RECORD(variable, name, fields) Record variable{name, fields};
#include "records.inc"
#undef RECORD

}  // namespace records

void bind_records(py::module_& m) { Record::bind_all(m); }

}  // namespace infeng
