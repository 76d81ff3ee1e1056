// Python bindings of packing: rows of f32, f16 or bf16 to 16-row panels, and codes that a quantizer chose.
#include <infeng/extension/error.h>
#include <infeng/extension/panel_buffer.h>
#include <infeng/extension/panel_threads.h>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <bit>
#include <cstring>
#include <optional>
#include <string>

#include "codes.h"
#include "library.h"
#include "packers.h"

namespace py = pybind11;

namespace infeng {
namespace {

void translate(std::exception_ptr pointer) {
  try {
    if (pointer) std::rethrow_exception(pointer);
  } catch (const Error& error) {
    try {
      const py::object type = py::module_::import("infeng_core.api").attr("NativeError");
      const py::object text = py::reinterpret_steal<py::object>(
          PyUnicode_DecodeUTF8(error.what(), Py_ssize_t(std::strlen(error.what())), "replace"));
      const py::object instance = type(text);
      instance.attr("code") = error.code();
      PyErr_SetObject(type.ptr(), instance.ptr());
    } catch (py::error_already_set& nested) {
      nested.restore();
    }
  }
}

// The core gives a format as a capsule of its descriptor, which lives as long as the process.
const infeng_format& format_of(const py::capsule& descriptor) {
  if (descriptor.name() == nullptr || std::strcmp(descriptor.name(), "infeng_format") != 0) {
    fail(kBad, "the capsule holds no weight format");
  }
  return *descriptor.get_pointer<const infeng_format>();
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

// Throws Error "not_finite" naming row and column of a value of the source.
void require_finite(const Source& s, int threads) {
  const py::gil_scoped_release released;
  for_panels((s.n + kLanes - 1) / kLanes, threads, [&](int64_t p) {
    Group x;
    for (int64_t column = 0; column < s.k; column += kGroup) load_group(s, p * kLanes, column, x);
  });
}

// Runs fill(row, panel) for the panels of a matrix (n, k) in `out`.
template <class Fill>
void fill_panels(const infeng_format& format, int64_t n, int64_t k, const py::buffer& out, int64_t offset,
                 int64_t first, int64_t step, int threads, Fill fill) {
  const int64_t count = (n + kLanes - 1) / kLanes;
  const py::buffer_info info = out.request(true);
  const Panels panels(info, offset, first, step, count, panel_bytes_of(format, k));
  const py::gil_scoped_release released;
  for_panels(count, threads, [&](int64_t p) { fill(p * kLanes, panels.at(p)); });
}

// Throws Error "unsupported" naming `what` if the format has no such packer.
template <class Part>
const Part& required(const Part* part, const infeng_format& format, const char* what) {
  if (part == nullptr) fail("unsupported", "weight format ", format.name, " has no ", what);
  return *part;
}

CodeGrid required_grid(const infeng_format& format) {
  const std::optional<CodeGrid> grid = grid_of(format);
  return required(grid ? &*grid : nullptr, format, "codes and scales that are known here");
}

template <class Write>
void write_zeroed(const infeng_format& format, int64_t k, uint8_t* panel, Write write) {
  std::memset(panel, 0, size_t(panel_bytes_of(format, k)));
  write();
}

std::optional<std::string> word_of(const py::object& context, const char* name) {
  return context.is_none() ? std::nullopt : context.attr(name).cast<std::optional<std::string>>();
}

int32_t number_in(const py::object& context, const char* name) {
  return context.is_none() ? -1 : context.attr(name).cast<std::optional<int32_t>>().value_or(-1);
}

// Packs by the functions of the format's library, which see the whole matrix and its context.
void pack_by_library(const infeng_format& format, const Source& s, const py::buffer& out, int64_t out_offset,
                     int64_t first_panel, int64_t panel_step, int threads, const py::object& context) {
  if (s.element != Element::f32 || s.row_bytes % 4 != 0) fail(kBad, "a library packs float32 matrices only");
  const auto tensor = word_of(context, "tensor"), part = word_of(context, "part"), role = word_of(context, "role");
  std::optional<py::array_t<double>> moments;
  if (!context.is_none()) moments = context.attr("moments").cast<std::optional<py::array_t<double>>>();
  if (moments && (moments->ndim() != 2 || moments->shape(0) != s.k || moments->shape(1) != s.k ||
                  (moments->flags() & py::array::c_style) == 0)) {
    fail(kBad, "the moments are no matrix (k, k) of contiguous rows");
  }
  const auto text = [](const std::optional<std::string>& word) { return word ? word->c_str() : nullptr; };
  infeng_source source{};
  source.struct_size = sizeof source;
  source.tensor = text(tensor);
  source.part = text(part);
  source.role = text(role);
  source.layer = number_in(context, "layer");
  source.expert = number_in(context, "expert");
  source.w = {const_cast<char*>(s.data), INFENG_F32, INFENG_DEVICE_CPU, 0, 2, {s.n, s.k}, {s.row_bytes / 4, 1}};
  source.moments = moments ? moments->data() : nullptr;
  require_finite(s, threads);
  std::optional<SourcePacking> packing;
  {
    const py::gil_scoped_release released;
    packing.emplace(format, source);
  }
  fill_panels(format, s.n, s.k, out, out_offset, first_panel, panel_step, threads,
              [&](int64_t row, uint8_t* panel) { packing->pack(row, panel); });
}

void pack(const py::capsule& descriptor, const py::array& source, const py::buffer& out, bool bf16, int64_t out_offset,
          int64_t first_panel, int64_t panel_step, int threads, const py::object& context) {
  const infeng_format& format = format_of(descriptor);
  const Packer& packer = packer_of(format);
  const Source s = source_of(source, bf16);
  if (packer.pack == nullptr) {
    pack_by_library(format, s, out, out_offset, first_panel, panel_step, threads, context);
    return;
  }
  fill_panels(format, s.n, s.k, out, out_offset, first_panel, panel_step, threads,
              [&](int64_t row, uint8_t* panel) { packer.pack(format, s, row, panel); });
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

void pack_codes_of(const py::capsule& descriptor, const py::array& codes, const py::array& scales,
                   const py::buffer& out, int64_t out_offset, int64_t first_panel, int64_t panel_step, int threads) {
  const infeng_format& format = format_of(descriptor);
  const CodeGrid grid = required_grid(format);
  const auto q = matrix_of<int8_t>("codes", codes);
  const auto scale = matrix_of<float>("scales", scales);
  const Codes given{q.data(), scale.data(), q.shape(0), q.shape(1)};
  if (given.k < 1) fail(kBad, "the codes have no columns");
  require_sizes("scales", scale, given.n, grid.groups(given.k));
  fill_panels(format, given.n, given.k, out, out_offset, first_panel, panel_step, threads,
              [&](int64_t row, uint8_t* panel) { pack_codes(format, given, row, panel); });
}

py::object codes_of(const py::capsule& descriptor, const py::buffer& data, int64_t offset, int64_t panels, int64_t k,
                    int64_t first_panel, int64_t panel_step) {
  const infeng_format& format = format_of(descriptor);
  const int64_t groups = required_grid(format).groups(k);
  const py::buffer_info info = data.request();
  const Panels packed(info, offset, first_panel, panel_step, panels, panel_bytes_of(format, k));
  py::array_t<int8_t> codes({panels * kLanes, k});
  py::array_t<float> scales({panels * kLanes, groups});
  int8_t* q = codes.mutable_data();
  float* scale = scales.mutable_data();
  {
    const py::gil_scoped_release released;
    for (int64_t p = 0; p < panels; p++) {
      unpack_codes(format, packed.at(p), k, q + p * kLanes * k, scale + p * kLanes * groups);
    }
  }
  return py::make_tuple(codes, scales);
}

void pack_units_of(const py::capsule& descriptor, const py::array& units, const py::array& scales,
                   const py::array& sub_scales, const py::array& zeros, const py::buffer& out, int64_t first_panel,
                   int64_t panel_step, int threads) {
  const infeng_format& format = format_of(descriptor);
  const UnitPacker& sub = required(packer_of(format).units, format, "integer sub-scales");
  const auto u = matrix_of<int8_t>("codes", units);
  const auto d = matrix_of<float>("scales", scales);
  const auto s = matrix_of<int8_t>("sub-scales", sub_scales), z = matrix_of<int8_t>("zero points", zeros);
  const Units given{u.data(), d.data(), s.data(), z.data(), u.shape(0), u.shape(1)};
  if (given.k < 1) fail(kBad, "the codes have no columns");
  require_sizes("scales", d, given.n, 1);
  require_sizes("sub-scales", s, given.n, sub.groups(given.k));
  require_sizes("zero points", z, given.n, sub.groups(given.k));
  fill_panels(format, given.n, given.k, out, 0, first_panel, panel_step, threads, [&](int64_t row, uint8_t* panel) {
    write_zeroed(format, given.k, panel, [&] { sub.write(given, row, panel); });
  });
}

py::object units_of(const py::capsule& descriptor, const py::buffer& data, int64_t offset, int64_t panels, int64_t k,
                    int64_t first_panel, int64_t panel_step) {
  const infeng_format& format = format_of(descriptor);
  const UnitPacker& sub = required(packer_of(format).units, format, "integer sub-scales");
  const py::buffer_info info = data.request();
  const Panels packed(info, offset, first_panel, panel_step, panels, panel_bytes_of(format, k));
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
  return py::make_tuple(units, scales, sub_scales, zeros);
}

void pack_minima_of(const py::capsule& descriptor, const py::array& units, const py::array& scales,
                    const py::array& minimum_scales, const py::array& sub_scales, const py::array& minima,
                    const py::buffer& out, int64_t first_panel, int64_t panel_step, int threads) {
  const infeng_format& format = format_of(descriptor);
  const MinimaPacker& grid = required(packer_of(format).minima, format, "minima");
  const auto u = matrix_of<int8_t>("codes", units);
  const auto d = matrix_of<float>("scales", scales), e = matrix_of<float>("scales of minima", minimum_scales);
  const auto s = matrix_of<uint8_t>("sub-scales", sub_scales), t = matrix_of<uint8_t>("minima", minima);
  const MinimaUnits given{u.data(), d.data(), e.data(), s.data(), t.data(), u.shape(0), u.shape(1)};
  if (given.k < 1) fail(kBad, "the codes have no columns");
  require_sizes("scales", d, given.n, grid.blocks(given.k));
  require_sizes("scales of minima", e, given.n, grid.blocks(given.k));
  require_sizes("sub-scales", s, given.n, grid.groups(given.k));
  require_sizes("minima", t, given.n, grid.groups(given.k));
  fill_panels(format, given.n, given.k, out, 0, first_panel, panel_step, threads, [&](int64_t row, uint8_t* panel) {
    write_zeroed(format, given.k, panel, [&] { grid.write(given, row, panel); });
  });
}

}  // namespace
}  // namespace infeng

PYBIND11_MODULE(_native, m) {
  using namespace infeng;
  py::register_local_exception_translator(&translate);
  m.def("pack", &pack, py::arg("descriptor"), py::arg("source"), py::arg("out"), py::kw_only(), py::arg("bf16") = false,
        py::arg("out_offset") = 0, py::arg("first_panel") = 0, py::arg("panel_step") = 1, py::arg("threads") = 1,
        py::arg("context") = py::none(),
        "Quantize and lay out: panel i of source becomes panel first_panel + i * panel_step of out.");
  m.def("pack_codes", &pack_codes_of, py::arg("descriptor"), py::arg("codes"), py::arg("scales"), py::arg("out"),
        py::kw_only(), py::arg("out_offset") = 0, py::arg("first_panel") = 0, py::arg("panel_step") = 1,
        py::arg("threads") = 1, "Lay out codes and their scales: panel i becomes panel first_panel + i * panel_step.");
  m.def("unpack_codes", &codes_of, py::arg("descriptor"), py::arg("data"), py::arg("offset"), py::arg("panels"),
        py::arg("k"), py::kw_only(), py::arg("first_panel") = 0, py::arg("panel_step") = 1,
        "Return the codes and the scales of panels.");
  m.def("pack_units", &pack_units_of, py::arg("descriptor"), py::arg("units"), py::arg("scales"), py::arg("sub_scales"),
        py::arg("zeros"), py::arg("out"), py::kw_only(), py::arg("first_panel") = 0, py::arg("panel_step") = 1,
        py::arg("threads") = 1, "Lay out codes with scales, sub-scales and zero points.");
  m.def("unpack_units", &units_of, py::arg("descriptor"), py::arg("data"), py::arg("offset"), py::arg("panels"),
        py::arg("k"), py::kw_only(), py::arg("first_panel") = 0, py::arg("panel_step") = 1,
        "Return the codes, scales, sub-scales and zero points of panels.");
  m.def("pack_minima", &pack_minima_of, py::arg("descriptor"), py::arg("units"), py::arg("scales"),
        py::arg("minimum_scales"), py::arg("sub_scales"), py::arg("minima"), py::arg("out"), py::kw_only(),
        py::arg("first_panel") = 0, py::arg("panel_step") = 1, py::arg("threads") = 1,
        "Lay out codes with scales, sub-scales and minima.");
}
