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

// _native.pyi documents the fields.
namespace records {

Record activation_view{"ActivationView", "q scale sum"};
Record adapter_embedding{"AdapterEmbedding", "rank a scaling part"};
Record adapter_part{"AdapterPart", "rank u_column first_panel panel_step panels b b_scale row_scale bias"};
Record adapter_tensor{"AdapterTensor", "name rank a scaling parts"};
Record changes{"Changes", "rows ids penalties biases"};
Record code_grid{"CodeGrid", "group lowest highest scale_type"};
Record codes{"Codes", "codes scales"};
Record cpu_info{"CpuInfo", "arch vendor model features masked cores quota caches"};
Record filters{"Filters", "typical_p top_n_sigma xtc_probability xtc_threshold"};
Record masks{"Masks", "rows bits"};
Record minima_grid{"MinimaGrid", "group superblock"};
Record op_info{"OpInfo", "op epilogues kernels"};
Record operand{"Operand", "name kind typical"};
Record profile_reading{"ProfileReading", "steps rows step_ns head_ns tail_ns phases workers events"};
Record rope_tables{"RopeTables", "cos sin"};
Record routing_view{"RoutingView", "experts weights places begin"};
Record sub_grid{"SubGrid", "group most_scale most_code"};
Record units{"Units", "units scales sub_scales zeros"};
Record weight_format_info{"WeightFormatInfo", "number group lowest highest"};
Record workspace{"Workspace", "shared per_worker align"};

}  // namespace records

void bind_records(py::module_& m) { Record::bind_all(m); }

}  // namespace infeng
