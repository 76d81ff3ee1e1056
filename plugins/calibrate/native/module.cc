// Python bindings of calibrated quantization, on NumPy arrays; large arrays are changed in place.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <initializer_list>
#include <optional>
#include <sstream>
#include <utility>
#include <vector>

#include "aim.h"
#include "descent.h"
#include "factor.h"
#include "gptq.h"
#include "gram.h"
#include "inputs.h"
#include "scales.h"
#include "subscales.h"

namespace py = pybind11;
using namespace py::literals;

namespace infeng {
namespace {

// Raises the core's NativeError with the concatenated parts as its text; the caller holds the GIL.
template <class... Parts>
[[noreturn]] void fail(const char* code, const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  const py::object type = py::module_::import("infeng_core.api").attr("NativeError"), error = type(text.str());
  error.attr("code") = code;
  PyErr_SetObject(type.ptr(), error.ptr());
  throw py::error_already_set();
}

template <class T>
using Dense = py::array_t<T, py::array::c_style>;  // bound without conversion: a copy would not be written to

template <class T>
void require_shape(const char* what, const Dense<T>& array, std::initializer_list<int64_t> shape) {
  bool fits = array.ndim() == int64_t(shape.size());
  for (int64_t i = 0; fits && i < int64_t(shape.size()); i++) fits = array.shape(i) == shape.begin()[i];
  if (!fits) fail("invalid_argument", "the ", what, " have another shape");
}

// Rows and columns of a matrix; raises NativeError for another array.
template <class T>
std::pair<int64_t, int64_t> sizes(const char* what, const Dense<T>& array) {
  if (array.ndim() != 2 || array.shape(0) < 1 || array.shape(1) < 1)
    fail("invalid_argument", "the ", what, " are no matrix");
  return {array.shape(0), array.shape(1)};
}

Dense<float> round_inputs(const Dense<float>& x, int64_t group, int threads, std::optional<Dense<float>> out_of) {
  if (group < 1) fail("invalid_argument", "inputs: groups of ", group);
  const auto [rows, k] = sizes("inputs", x);
  Dense<float> made = out_of ? *out_of : Dense<float>({rows, k});
  require_shape("rounded inputs", made, {rows, k});
  float* out = made.mutable_data();
  const py::gil_scoped_release released;
  calibration::round_inputs(x.data(), rows, k, group, out, threads);
  return made;
}

void add_gram(const Dense<float>& x, Dense<double>& h, int threads) {
  const auto [rows, k] = sizes("inputs", x);
  require_shape("moments", h, {k, k});
  double* out = h.mutable_data();
  const py::gil_scoped_release released;
  calibration::add_gram(x.data(), rows, k, out, threads);
}

void add_cross(const Dense<float>& y, const Dense<float>& x, Dense<double>& c, int threads) {
  const auto [rows, k] = sizes("inputs", x);
  const auto [count, m] = sizes("values", y);
  require_shape("values", y, {rows, m});
  require_shape("moments", c, {m, k});
  double* out = c.mutable_data();
  const py::gil_scoped_release released;
  calibration::add_cross(y.data(), m, x.data(), rows, k, out, threads);
}

void factor(Dense<double>& h, int threads) {
  const auto [k, columns] = sizes("moments", h);
  require_shape("moments", h, {k, k});
  double* a = h.mutable_data();
  int64_t failed;
  {
    const py::gil_scoped_release released;
    failed = calibration::factor(a, k, threads);
  }
  if (failed >= 0) fail("out_of_range", "column ", failed, ": the matrix is not positive definite");
}

Dense<float> choose_scales(const Dense<float>& w, const Dense<double>& weight, int64_t group, int low, int high,
                           bool half, int threads) {
  const auto [n, k] = sizes("weights", w);
  require_shape("costs", weight, {k});
  if (group < 1 || low >= 0 || high <= 0)
    fail("invalid_argument", "groups of ", group, ", codes from ", low, " to ", high);
  Dense<float> scales({n, (k + group - 1) / group});
  float* out = scales.mutable_data();
  const py::gil_scoped_release released;
  calibration::choose_scales(w.data(), n, k, weight.data(), group, low, high, half, out, threads);
  return scales;
}

int require_bits(int bits) {
  if (bits < 4 || bits > 6) fail("invalid_argument", "codes of ", bits, " bits");
  return bits;
}

// The NamedTuple of _native.pyi; it lives as long as the process.
py::handle sub_scales_type() {
  static const py::handle type =
      py::module_::import("collections")
          .attr("namedtuple")("SubScales", "scales sub_scales zeros", "module"_a = "infeng_calibrate._native")
          .release();
  return type;
}

py::object choose_sub_scales(const Dense<float>& w, const Dense<double>& weight, int bits, int threads) {
  const auto [n, k] = sizes("weights", w);
  require_shape("costs", weight, {k});
  const SubGrid grid{require_bits(bits)};
  const int64_t groups = (k + kSubGroup - 1) / kSubGroup;
  Dense<float> d({n, int64_t(1)});
  Dense<int8_t> s({n, groups}), z({n, groups});
  const calibration::SubScales out{d.mutable_data(), s.mutable_data(), z.mutable_data()};
  {
    const py::gil_scoped_release released;
    calibration::choose_sub_scales(w.data(), n, k, weight.data(), grid, out, threads);
  }
  return sub_scales_type()(d, s, z);
}

void refit_scales(const Dense<float>& w, const Dense<int8_t>& q, const Dense<double>& h, Dense<float>& d, int threads) {
  const auto [n, k] = sizes("weights", w);
  require_shape("integers", q, {n, k});
  require_shape("moments", h, {k, k});
  require_shape("scales", d, {n, 1});
  float* out = d.mutable_data();
  const py::gil_scoped_release released;
  calibration::refit_scales(w.data(), q.data(), n, k, h.data(), out, threads);
}

// Checks that the order contains each input once; else rows outside the arrays would be read.
void require_order(const Dense<int32_t>& order, int64_t k) {
  require_shape("order", order, {k});
  std::vector<bool> seen(size_t(k), false);
  for (int64_t i = 0; i < k; i++) {
    const int32_t input = order.data()[i];
    if (input < 0 || input >= k || seen[size_t(input)]) fail("invalid_argument", "the order is no permutation");
    seen[size_t(input)] = true;
  }
}

Dense<float> aim(const Dense<float>& w, const Dense<double>& drift, const Dense<int32_t>& order,
                 const Dense<double>& factors, int threads) {
  const auto [n, k] = sizes("weights", w);
  require_shape("drift", drift, {k, k});
  require_order(order, k);
  require_shape("factors", factors, {k, k});
  Dense<float> made({n, k});
  float* out = made.mutable_data();
  const py::gil_scoped_release released;
  calibration::aim(w.data(), n, k, drift.data(), order.data(), factors.data(), out, threads);
  return made;
}

Dense<int8_t> choose_codes(const Dense<float>& w, const Dense<int32_t>& order, const Dense<double>& factors,
                           const Dense<float>& step, const Dense<int8_t>& low, const Dense<int8_t>& high, int64_t group,
                           int threads) {
  const auto [n, k] = sizes("weights", w);
  if (group < 1) fail("invalid_argument", "groups of ", group);
  const int64_t groups = (k + group - 1) / group;
  require_order(order, k);
  require_shape("factors", factors, {k, k});
  require_shape("steps", step, {n, groups});
  require_shape("lowest codes", low, {n, groups});
  require_shape("highest codes", high, {n, groups});
  for (int64_t i = 0; i < n * groups; i++) {
    if (low.data()[i] > high.data()[i]) fail("invalid_argument", "the lowest code is above the highest");
  }
  Dense<int8_t> codes({n, k});
  int8_t* out = codes.mutable_data();
  const py::gil_scoped_release released;
  calibration::choose_codes(w.data(), n, k, order.data(), factors.data(),
                            {step.data(), low.data(), high.data(), group, groups}, out, threads);
  return codes;
}

void descend(const Dense<float>& w, const Dense<double>& h, double damping, const Dense<float>& d, Dense<int8_t>& s,
             Dense<int8_t>& z, Dense<int8_t>& codes, int bits, int threads) {
  const auto [n, k] = sizes("weights", w);
  const int64_t groups = (k + kSubGroup - 1) / kSubGroup;
  require_shape("moments", h, {k, k});
  require_shape("scales", d, {n, 1});
  require_shape("sub-scales", s, {n, groups});
  require_shape("zero points", z, {n, groups});
  require_shape("codes", codes, {n, k});
  const SubGrid grid{require_bits(bits)};
  for (int64_t i = 0; i < n * groups; i++) {
    if (s.data()[i] < 1 || s.data()[i] > grid.most_scale() || z.data()[i] < 0 || z.data()[i] > grid.most_unit())
      fail("invalid_argument", "a sub-scale or zero point is out of range");
  }
  // d is only read; the struct is shared with the function that chooses it.
  const calibration::SubScales scales{const_cast<float*>(d.data()), s.mutable_data(), z.mutable_data()};
  const calibration::Integers chosen{scales, codes.mutable_data()};
  const py::gil_scoped_release released;
  calibration::descend(w.data(), n, k, h.data(), damping, grid, chosen, threads);
}

}  // namespace
}  // namespace infeng

PYBIND11_MODULE(_native, m) {
  using namespace infeng;
  m.doc() = "Quantization by statistics of the inputs.";
  m.attr("NativeError") = py::module_::import("infeng_core.api").attr("NativeError");
  m.attr("SubScales") = sub_scales_type();
  m.def("round_inputs", &round_inputs, "x"_a.noconvert(), "group"_a = 64, "threads"_a = 1,
        "out"_a.noconvert() = py::none(),
        "The rows x as integer kernels read them: int8 with a scale for every group of inputs; out may be x.");
  m.def("add_gram", &add_gram, "x"_a.noconvert(), "h"_a.noconvert(), "threads"_a = 1,
        "h += x'x in the upper triangle.");
  m.def("add_cross", &add_cross, "y"_a.noconvert(), "x"_a.noconvert(), "c"_a.noconvert(), "threads"_a = 1, "c += y'x.");
  m.def("factor", &factor, "h"_a.noconvert(), "threads"_a = 1, "The lower triangle of h becomes L and D of L D L'.");
  m.def("choose_scales", &choose_scales, "w"_a.noconvert(), "weight"_a.noconvert(), "group"_a, "low"_a, "high"_a,
        "half"_a, "threads"_a = 1, "The scales of all groups, (n, groups).");
  m.def("choose_sub_scales", &choose_sub_scales, "w"_a.noconvert(), "weight"_a.noconvert(), "bits"_a, "threads"_a = 1,
        "Scales (n, 1), sub-scales and zero points (n, groups) of a format with integer sub-scales.");
  m.def("refit_scales", &refit_scales, "w"_a.noconvert(), "q"_a.noconvert(), "h"_a.noconvert(), "d"_a.noconvert(),
        "threads"_a = 1, "The scale of each row with the least loss for its integers, in place.");
  m.def("aim", &aim, "w"_a.noconvert(), "drift"_a.noconvert(), "order"_a.noconvert(), "factors"_a.noconvert(),
        "threads"_a = 1, "The weights (n, k) that give on drifted inputs the outputs of w on inputs without drift.");
  m.def("choose_codes", &choose_codes, "w"_a.noconvert(), "order"_a.noconvert(), "factors"_a.noconvert(),
        "step"_a.noconvert(), "low"_a.noconvert(), "high"_a.noconvert(), "group"_a, "threads"_a = 1,
        "Codes (n, k); each column compensates the errors of the columns before it.");
  m.def("descend", &descend, "w"_a.noconvert(), "h"_a.noconvert(), "damping"_a, "d"_a.noconvert(), "s"_a.noconvert(),
        "z"_a.noconvert(), "codes"_a.noconvert(), "bits"_a, "threads"_a = 1,
        "Sub-scales, zero points and codes chosen again, one group at a time with the others fixed, in place.");
}
