// Python bindings of packing: rows of f32, f16 or bf16 to 16-row panels, and back.
#include <pybind11/numpy.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "bind/bindings.h"
#include "bind/records.h"
#include "error.h"
#include "vocabulary/names.h"
#include "weights/codes.h"
#include "weights/formats.h"
#include "weights/panels.h"
#include "weights/weight.h"

namespace py = pybind11;
using namespace py::literals;

namespace infeng {
namespace {

// Runs work(panel) for all panels and throws the error of the lowest panel, whatever the threads' timing: panels are
// taken in ascending order, so every panel below a failed one is finished too.
template <class Work>
void for_panels(int64_t panels, int threads, Work work) {
  std::atomic<int64_t> next{0};
  std::mutex mutex;
  int64_t failed = panels;
  std::exception_ptr error;
  auto loop = [&] {
    for (int64_t p; (p = next.fetch_add(1)) < panels;) {
      try {
        work(p);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (p < failed) failed = p, error = std::current_exception();
        next.store(panels);
      }
    }
  };
  std::vector<std::jthread> helpers;
  for (int64_t i = 1; i < std::min<int64_t>(threads, panels); i++) helpers.emplace_back(loop);
  loop();
  helpers.clear();
  if (error) std::rethrow_exception(error);
}

Source source_of(const py::array& array, bool bf16) {
  if (array.ndim() != 2) fail(kBad, "the source must be a matrix (n, k)");
  const py::dtype type = array.dtype();
  const bool native = type.byteorder() != (std::endian::native == std::endian::little ? '>' : '<');
  Element element;
  if (!bf16 && type.kind() == 'f' && type.itemsize() == 4 && native) {
    element = Element::f32;
  } else if (!bf16 && type.kind() == 'f' && type.itemsize() == 2 && native) {
    element = Element::f16;
  } else if (bf16 && type.kind() == 'u' && type.itemsize() == 2 && native) {
    element = Element::bf16;
  } else {
    fail(kBad, "the source must be float32, float16, or uint16 with bf16=True");
  }
  if (array.shape(1) < 1) fail(kBad, "the source has no columns");
  if (array.shape(1) > 1 && array.strides(1) != array.itemsize()) {
    fail(kBad, "the rows of the source must be contiguous");
  }
  return {static_cast<const char*>(array.data()), array.shape(0), array.shape(1), array.strides(0), element};
}

// Panels of a buffer: panel `first` and every `step`-th after it.
class Panels {
 public:
  Panels(const py::buffer_info& info, int64_t offset, int64_t first, int64_t step, int64_t count, int64_t bytes)
      : first_(first), step_(step), bytes_(bytes) {
    const int64_t size = int64_t(info.size) * info.itemsize;
    if (offset < 0 || first < 0 || step < 1 || count < 0 || offset > size) {
      fail(kBad, "offset, first panel and step must lie inside the buffer");
    }
    const int64_t room = (size - offset) / bytes;  // whole panels
    if (count > 0 && (first >= room || (count - 1) > (room - 1 - first) / step)) {
      fail(kBad, "the buffer holds ", room, " panels, too few");
    }
    base_ = static_cast<uint8_t*>(info.ptr) + offset;
  }

  uint8_t* at(int64_t p) const { return base_ + (first_ + p * step_) * bytes_; }

 private:
  uint8_t* base_;
  int64_t first_, step_, bytes_;
};

// Runs fill(row, panel) for the panels of a matrix (n, k) in `out`.
template <class Fill>
void fill_panels(uint32_t format, int64_t n, int64_t k, const py::buffer& out, int64_t offset, int64_t first,
                 int64_t step, int threads, Fill fill) {
  const int64_t count = (n + kLanes - 1) / kLanes;
  const py::buffer_info info = out.request(true);
  const Panels panels(info, offset, first, step, count, panel_bytes_of(format, k));
  const py::gil_scoped_release released;
  for_panels(count, threads, [&](int64_t p) { fill(p * kLanes, panels.at(p)); });
}

void pack(const std::string& format, const py::array& source, const py::buffer& out, bool bf16, int64_t out_offset,
          int64_t first_panel, int64_t panel_step, int threads) {
  const uint32_t id = number_of(Vocabulary::weight, format);
  const Source s = source_of(source, bf16);
  fill_panels(id, s.n, s.k, out, out_offset, first_panel, panel_step, threads,
              [&](int64_t row, uint8_t* panel) { pack_panel(id, s, row, panel); });
}

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

// Throws Error "unsupported" naming `what` if the format has no such descriptor.
template <class Descriptor>
const Descriptor& required(const Descriptor* descriptor, const std::string& format, const char* what) {
  if (descriptor == nullptr) fail("unsupported", "weight format ", format, " has no ", what);
  return *descriptor;
}

const CodeGrid& grid_of(const std::string& name, uint32_t format) {
  return required(code_grid(format), name, "codes and scales that are known here");
}

py::object grid_record(const std::string& format) {
  const CodeGrid* grid = code_grid(number_of(Vocabulary::weight, format));
  if (grid == nullptr) return py::none();
  return records::code_grid(grid->group, grid->low, grid->high, grid->half ? "float16" : "float32");
}

// Returns a matrix with contiguous rows; its dtype must be exactly T.
template <class T>
py::array_t<T> matrix_of(const char* what, const py::array& array) {
  if (!py::isinstance<py::array_t<T>>(array)) {
    fail(kBad, "the ", what, " are ", std::string(py::str(array.dtype())), ", not ",
         std::string(py::str(py::dtype::of<T>())));
  }
  if (array.ndim() != 2) fail(kBad, "the ", what, " are no matrix");
  return py::array_t < T, py::array::c_style | py::array::forcecast > ::ensure(array);
}

void require_sizes(const char* what, const py::array& array, int64_t n, int64_t columns) {
  if (array.shape(0) == n && array.shape(1) == columns) return;
  fail(kBad, "the ", what, " are (", array.shape(0), ", ", array.shape(1), "), not (", n, ", ", columns, ")");
}

void pack_codes_of(const std::string& format, const py::array& codes, const py::array& scales, const py::buffer& out,
                   int64_t out_offset, int64_t first_panel, int64_t panel_step, int threads) {
  const uint32_t id = number_of(Vocabulary::weight, format);
  const CodeGrid& grid = grid_of(format, id);
  const auto q = matrix_of<int8_t>("codes", codes);
  const auto scale = matrix_of<float>("scales", scales);
  const Codes given{q.data(), scale.data(), q.shape(0), q.shape(1)};
  if (given.k < 1) fail(kBad, "the codes have no columns");
  require_sizes("scales", scale, given.n, grid.groups(given.k));
  fill_panels(id, given.n, given.k, out, out_offset, first_panel, panel_step, threads,
              [&](int64_t row, uint8_t* panel) { pack_codes(id, given, row, panel); });
}

py::object codes_of(const std::string& format, const py::buffer& data, int64_t offset, int64_t panels, int64_t k,
                    int64_t first_panel, int64_t panel_step) {
  const uint32_t id = number_of(Vocabulary::weight, format);
  const int64_t groups = grid_of(format, id).groups(k);
  const py::buffer_info info = data.request();
  const Panels packed(info, offset, first_panel, panel_step, panels, panel_bytes_of(id, k));
  py::array_t<int8_t> codes({panels * kLanes, k});
  py::array_t<float> scales({panels * kLanes, groups});
  int8_t* q = codes.mutable_data();
  float* scale = scales.mutable_data();
  {
    const py::gil_scoped_release released;
    for (int64_t p = 0; p < panels; p++) {
      unpack_codes(id, packed.at(p), k, q + p * kLanes * k, scale + p * kLanes * groups);
    }
  }
  return records::codes(codes, scales);
}

const SubScaling& scaling_of(const std::string& name, uint32_t format) {
  return required(sub_scaling(format), name, "integer sub-scales");
}

py::object sub_grid_record(const std::string& format) {
  const SubScaling* sub = sub_scaling(number_of(Vocabulary::weight, format));
  if (sub == nullptr) return py::none();
  return records::sub_grid(sub->group, sub->most_scale, sub->most_unit);
}

void pack_units_of(const std::string& format, const py::array& units, const py::array& scales,
                   const py::array& sub_scales, const py::array& zeros, const py::buffer& out, int64_t first_panel,
                   int64_t panel_step, int threads) {
  const uint32_t id = number_of(Vocabulary::weight, format);
  const SubScaling& sub = scaling_of(format, id);
  const auto u = matrix_of<int8_t>("codes", units);
  const auto d = matrix_of<float>("scales", scales);
  const auto s = matrix_of<int8_t>("sub-scales", sub_scales), z = matrix_of<int8_t>("zero points", zeros);
  const Units given{u.data(), d.data(), s.data(), z.data(), u.shape(0), u.shape(1)};
  if (given.k < 1) fail(kBad, "the codes have no columns");
  require_sizes("scales", d, given.n, 1);
  require_sizes("sub-scales", s, given.n, sub.groups(given.k));
  require_sizes("zero points", z, given.n, sub.groups(given.k));
  fill_panels(id, given.n, given.k, out, 0, first_panel, panel_step, threads,
              [&](int64_t row, uint8_t* panel) { pack_units(id, given, row, panel); });
}

py::object units_of(const std::string& format, const py::buffer& data, int64_t offset, int64_t panels, int64_t k,
                    int64_t first_panel, int64_t panel_step) {
  const uint32_t id = number_of(Vocabulary::weight, format);
  const SubScaling& sub = scaling_of(format, id);
  const py::buffer_info info = data.request();
  const Panels packed(info, offset, first_panel, panel_step, panels, panel_bytes_of(id, k));
  const int64_t rows = panels * kLanes, groups = sub.groups(k);
  py::array_t<int8_t> units({rows, k}), sub_scales({rows, groups}), zeros({rows, groups});
  py::array_t<float> scales({rows, int64_t(1)});
  const UnitRows to{units.mutable_data(), scales.mutable_data(), sub_scales.mutable_data(), zeros.mutable_data()};
  {
    const py::gil_scoped_release released;
    for (int64_t p = 0; p < panels; p++) {
      const int64_t row = p * kLanes;
      sub.read(packed.at(p), k, {to.u + row * k, to.d + row, to.s + row * groups, to.z + row * groups});
    }
  }
  return records::units(units, scales, sub_scales, zeros);
}

py::object minima_grid_record(const std::string& format) {
  const MinimaScaling* minima = minima_scaling(number_of(Vocabulary::weight, format));
  if (minima == nullptr) return py::none();
  return records::minima_grid(minima->group, minima->superblock);
}

void pack_minima_of(const std::string& format, const py::array& units, const py::array& scales,
                    const py::array& minimum_scales, const py::array& sub_scales, const py::array& minima,
                    const py::buffer& out, int64_t first_panel, int64_t panel_step, int threads) {
  const uint32_t id = number_of(Vocabulary::weight, format);
  const MinimaScaling& grid = required(minima_scaling(id), format, "minima");
  const auto u = matrix_of<int8_t>("codes", units);
  const auto d = matrix_of<float>("scales", scales), e = matrix_of<float>("scales of minima", minimum_scales);
  const auto s = matrix_of<uint8_t>("sub-scales", sub_scales), t = matrix_of<uint8_t>("minima", minima);
  const MinimaUnits given{u.data(), d.data(), e.data(), s.data(), t.data(), u.shape(0), u.shape(1)};
  if (given.k < 1) fail(kBad, "the codes have no columns");
  require_sizes("scales", d, given.n, grid.blocks(given.k));
  require_sizes("scales of minima", e, given.n, grid.blocks(given.k));
  require_sizes("sub-scales", s, given.n, grid.groups(given.k));
  require_sizes("minima", t, given.n, grid.groups(given.k));
  fill_panels(id, given.n, given.k, out, 0, first_panel, panel_step, threads,
              [&](int64_t row, uint8_t* panel) { pack_units(id, given, row, panel); });
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

void bind_packing(py::module_& m) {
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
        const WeightFormat& format = format_of(number_of(Vocabulary::weight, name));
        return records::weight_format_info(format.abi.number, format.abi.group, format.grid.low, format.grid.high);
      },
      py::arg("format"), "What the descriptor of a weight format says beside its name and its functions.");
  m.def(
      "activation", [](const std::string& format) { return activation_name(number_of(Vocabulary::weight, format)); },
      py::arg("format"), "What a linear over a weight format reads.");
  m.def(
      "panel_bytes",
      [](const std::string& format, int64_t k) { return panel_bytes_of(number_of(Vocabulary::weight, format), k); },
      py::arg("format"), py::arg("k"), "Bytes of one 16-row panel over k inputs.");
  m.def("pack", &pack, py::arg("format"), py::arg("source"), py::arg("out"), py::kw_only(), py::arg("bf16") = false,
        py::arg("out_offset") = 0, py::arg("first_panel") = 0, py::arg("panel_step") = 1, py::arg("threads") = 1,
        "Quantize and lay out: panel i of source becomes panel first_panel + i * panel_step of out.");
  m.def("unpack", &unpack, py::arg("format"), py::arg("data"), py::arg("offset"), py::arg("panels"), py::arg("k"),
        py::kw_only(), py::arg("first_panel") = 0, py::arg("panel_step") = 1,
        "Return (panels * 16, k) float32, the values the kernels compute with.");
  m.def("check_panels", &check_panels, py::arg("format"), py::arg("data"), py::arg("offset"), py::arg("panels"),
        py::arg("k"), py::kw_only(), py::arg("threads") = 1,
        "Throw out_of_range or not_finite where panels hold what the format forbids.");
  m.def("code_grid", &grid_record, py::arg("format"), "What codes and scales an integer format stores, or None.");
  m.def("pack_codes", &pack_codes_of, py::arg("format"), py::arg("codes"), py::arg("scales"), py::arg("out"),
        py::kw_only(), py::arg("out_offset") = 0, py::arg("first_panel") = 0, py::arg("panel_step") = 1,
        py::arg("threads") = 1, "Lay out codes and their scales: panel i becomes panel first_panel + i * panel_step.");
  m.def("unpack_codes", &codes_of, py::arg("format"), py::arg("data"), py::arg("offset"), py::arg("panels"),
        py::arg("k"), py::kw_only(), py::arg("first_panel") = 0, py::arg("panel_step") = 1,
        "Return the codes and the scales of panels.");
  m.def("sub_grid", &sub_grid_record, py::arg("format"), "What sub-scales a format stores, or None.");
  m.def("pack_units", &pack_units_of, py::arg("format"), py::arg("units"), py::arg("scales"), py::arg("sub_scales"),
        py::arg("zeros"), py::arg("out"), py::kw_only(), py::arg("first_panel") = 0, py::arg("panel_step") = 1,
        py::arg("threads") = 1, "Lay out codes with scales, sub-scales and zero points.");
  m.def("unpack_units", &units_of, py::arg("format"), py::arg("data"), py::arg("offset"), py::arg("panels"),
        py::arg("k"), py::kw_only(), py::arg("first_panel") = 0, py::arg("panel_step") = 1,
        "Return the codes, scales, sub-scales and zero points of panels.");
  m.def("minima_grid", &minima_grid_record, py::arg("format"), "What minima a format stores, or None.");
  m.def("pack_minima", &pack_minima_of, py::arg("format"), py::arg("units"), py::arg("scales"),
        py::arg("minimum_scales"), py::arg("sub_scales"), py::arg("minima"), py::arg("out"), py::kw_only(),
        py::arg("first_panel") = 0, py::arg("panel_step") = 1, py::arg("threads") = 1,
        "Lay out codes with scales, sub-scales and minima.");
}

}  // namespace infeng
