// Python bindings of weight formats: what each stores, and its panels read and checked.
#include <infeng/extension/error.h>
#include <infeng/extension/panel_buffer.h>
#include <infeng/extension/panel_threads.h>
#include <pybind11/numpy.h>

#include <algorithm>
#include <string>

#include "bind/bindings.h"
#include "bind/records.h"
#include "vocabulary/names.h"
#include "weights/formats.h"
#include "weights/panels.h"
#include "weights/weight.h"

namespace py = pybind11;
using namespace py::literals;

namespace infeng {
namespace {

py::array_t<float> unpack(const std::string& format, const py::buffer& data, int64_t offset, int64_t panels, int64_t k,
                          int64_t first_panel, int64_t panel_step) {
  const uint32_t id = number_of(Vocabulary::weight, format);
  const py::buffer_info info = data.request();
  const Panels packed(info, offset, first_panel, panel_step, panels, panel_bytes_of(id, k));
  py::array_t<float> result({panels * kLanes, k});
  float* out = result.mutable_data();
  const py::gil_scoped_release released;
  for (int64_t p = 0; p < panels; p++) {
    for (int64_t g = 0; g * kGroup < k; g++) {
      Group x;
      unpack_group(id, packed.at(p), g, x);
      const int64_t count = std::min<int64_t>(kGroup, k - g * kGroup);
      for (int n = 0; n < kLanes; n++) {
        for (int64_t i = 0; i < count; i++) out[(p * kLanes + n) * k + g * kGroup + i] = x[i][n];
      }
    }
  }
  return result;
}

const WeightFormat& named(const std::string& format) { return format_of(number_of(Vocabulary::weight, format)); }

py::object grid_record(const std::string& format) {
  const WeightFormat& known = named(format);
  if (!known.has_codes()) return py::none();
  const CodeGrid& grid = known.grid;
  return records::code_grid(grid.group, grid.low, grid.high, grid.half ? "float16" : "float32");
}

py::object sub_grid_record(const std::string& format) {
  const SubScaling& sub = named(format).sub;
  if (sub.group == 0) return py::none();
  return records::sub_grid(sub.group, sub.most_scale, sub.most_unit);
}

py::object minima_grid_record(const std::string& format) {
  const MinimaScaling& minima = named(format).minima;
  if (minima.group == 0) return py::none();
  return records::minima_grid(minima.group, minima.superblock);
}

void check_panels(const std::string& format, const py::buffer& data, int64_t offset, int64_t panels, int64_t k,
                  int threads) {
  const uint32_t id = number_of(Vocabulary::weight, format);
  const WeightFormat& known = format_of(id);
  if (known.check == nullptr) return;
  const py::buffer_info info = data.request();
  const Panels packed(info, offset, 0, 1, panels, panel_bytes_of(id, k));
  const py::gil_scoped_release released;
  for_panels(panels, threads, [&](int64_t p) { known.check(packed.at(p), k, p * kLanes); });
}

// The name of the activation that a linear over the format reads.
std::string activation_name(uint32_t format) { return name_of(Vocabulary::act, activation_of(format)); }

}  // namespace

void bind_formats(py::module_& m) {
  py::dict own;
  for (const WeightFormat* format : all_formats()) {
    own[format->abi.name] = name_of(Vocabulary::act, format->abi.act_format);
  }
  m.attr("WEIGHT_FORMATS") = own;
  m.attr("ROW_GROUP") = INFENG_GROUP_ROW;
  m.attr("MOST_ROW_INPUTS") = INFENG_MOST_ROW_INPUTS;
  m.def(
      "weight_format",
      [](const std::string& name) {
        const WeightFormat& format = named(name);
        return records::weight_format_info(format.abi.number, format.abi.group, format.grid.low, format.grid.high);
      },
      py::arg("format"), "What the descriptor of a weight format says beside its name and its functions.");
  m.def(
      "activation", [](const std::string& format) { return activation_name(number_of(Vocabulary::weight, format)); },
      py::arg("format"), "What a linear over a weight format reads.");
  m.def(
      "format_descriptor",
      [](const std::string& format) {
        const infeng_format* known = &named(format).abi;
        return py::capsule(known, "infeng_format");  // lives as long as the process
      },
      py::arg("format"), "The ABI's descriptor of a weight format, for extension modules.");
  m.def(
      "panel_bytes",
      [](const std::string& format, int64_t k) { return panel_bytes_of(number_of(Vocabulary::weight, format), k); },
      py::arg("format"), py::arg("k"), "Bytes of one 16-row panel over k inputs.");
  m.def("unpack", &unpack, py::arg("format"), py::arg("data"), py::arg("offset"), py::arg("panels"), py::arg("k"),
        py::kw_only(), py::arg("first_panel") = 0, py::arg("panel_step") = 1,
        "Return (panels * 16, k) float32, the values the kernels compute with.");
  m.def("check_panels", &check_panels, py::arg("format"), py::arg("data"), py::arg("offset"), py::arg("panels"),
        py::arg("k"), py::kw_only(), py::arg("threads") = 1,
        "Throw out_of_range or not_finite where panels hold what the format forbids.");
  m.def("code_grid", &grid_record, py::arg("format"), "What codes and scales an integer format stores, or None.");
  m.def("sub_grid", &sub_grid_record, py::arg("format"), "What sub-scales a format stores, or None.");
  m.def("minima_grid", &minima_grid_record, py::arg("format"), "What minima a format stores, or None.");
}

}  // namespace infeng
