// Sampling for Python: arrays with one entry per row.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <cmath>
#include <optional>

#include "bind/bindings.h"
#include "error.h"
#include "sampling/philox.h"
#include "sampling/sampling.h"

namespace py = pybind11;

namespace infeng {
namespace {

constexpr int64_t kMany = int64_t{1} << 19;  // tokens to choose from: about a millisecond with filters

template <class T>
using Vector = py::array_t<T, py::array::c_style>;

void check(const SamplingSettings& s, int64_t row) {
  constexpr const char* kBad = "invalid_argument";
  if (!(s.temperature >= 0.0f && std::isfinite(s.temperature))) {
    fail(kBad, "row ", row, ": temperature must be finite and not negative, not ", s.temperature);
  }
  if (s.top_k < 0) fail(kBad, "row ", row, ": top_k must not be negative, not ", s.top_k);
  if (!(s.top_p > 0.0f && s.top_p <= 1.0f)) fail(kBad, "row ", row, ": top_p must lie in (0, 1], not ", s.top_p);
  if (!(s.min_p >= 0.0f && s.min_p <= 1.0f)) fail(kBad, "row ", row, ": min_p must lie in [0, 1], not ", s.min_p);
}

void check_rows(const char* name, const py::array& vector, int64_t rows) {
  if (vector.ndim() != 1 || vector.shape(0) != rows) {
    fail("invalid_argument", name, ": needs one entry for each of the ", rows, " rows");
  }
}

void sample(const py::array_t<float>& logits, const Vector<float>& temperature, const Vector<int32_t>& top_k,
            const Vector<float>& top_p, const Vector<float>& min_p, const Vector<uint64_t>& seed,
            const Vector<int64_t>& position, py::array_t<int32_t> out) {
  if (logits.ndim() != 2 || logits.shape(1) < 1 || logits.shape(1) > kMostTokens ||
      logits.strides(1) != sizeof(float)) {
    fail("invalid_argument", "logits: needs (samples, vocab) with contiguous rows of 1 to ", kMostTokens, " tokens");
  }
  const int64_t rows = logits.shape(0);
  check_rows("temperature", temperature, rows);
  check_rows("top_k", top_k, rows);
  check_rows("top_p", top_p, rows);
  check_rows("min_p", min_p, rows);
  check_rows("seed", seed, rows);
  check_rows("position", position, rows);
  check_rows("out", out, rows);
  const auto row_bytes = logits.strides(0);
  const char* base = reinterpret_cast<const char*>(logits.data());
  auto ids = out.mutable_unchecked<1>();
  // Another thread may keep the GIL for a switch interval, longer than a few rows take.
  std::optional<py::gil_scoped_release> released;
  if (rows * logits.shape(1) >= kMany) released.emplace();
  for (int64_t row = 0; row < rows; row++) {
    const SamplingSettings settings{temperature.data()[row], top_k.data()[row], top_p.data()[row],
                                    min_p.data()[row],       seed.data()[row],  position.data()[row]};
    check(settings, row);
    const int32_t id = sample_row(reinterpret_cast<const float*>(base + row * row_bytes), logits.shape(1), settings);
    if (id < 0) fail("not_finite", "row ", row, ": the logits hold NaN or infinity");
    ids(row) = id;
  }
}

}  // namespace

void bind_sampling(py::module_& m) {
  m.def("sample", &sample, py::arg("logits").noconvert(), py::arg("temperature"), py::arg("top_k"), py::arg("top_p"),
        py::arg("min_p"), py::arg("seed"), py::arg("position"), py::arg("out").noconvert(),
        "Pick one id per row as docs/numerics.md says; raises NativeError \"not_finite\" naming the row.");
  m.def("philox", &philox4x32_10, py::arg("key"), py::arg("counter"),
        "Philox4x32-10 of a key of two and a counter of four 32-bit words.");
}

}  // namespace infeng
