// Python bindings of sampling; arrays have one entry per row.
#include <infeng/extension/error.h>

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <cmath>
#include <optional>
#include <tuple>

#include "bind/bindings.h"
#include "sampling/philox.h"
#include "sampling/sampling.h"

namespace py = pybind11;

namespace infeng {
namespace {

constexpr int64_t kMany = int64_t{1} << 19;  // logits that take about a millisecond with filters

template <class T>
using Vector = py::array_t<T, py::array::c_style>;

void check(const SamplingSettings& s, int64_t row) {
  if (!(s.temperature >= 0.0f && std::isfinite(s.temperature))) {
    fail(kBad, "row ", row, ": temperature must be finite and not negative, not ", s.temperature);
  }
  if (s.top_k < 0) fail(kBad, "row ", row, ": top_k must not be negative, not ", s.top_k);
  if (!(s.top_p > 0.0f && s.top_p <= 1.0f)) fail(kBad, "row ", row, ": top_p must lie in (0, 1], not ", s.top_p);
  if (!(s.min_p >= 0.0f && s.min_p <= 1.0f)) fail(kBad, "row ", row, ": min_p must lie in [0, 1], not ", s.min_p);
  const auto check_share = [&](const char* name, float value) {
    if (!(value > 0.0f && value <= 1.0f)) fail(kBad, "row ", row, ": ", name, " must lie in (0, 1], not ", value);
  };
  check_share("typical_p", s.typical_p);
  if (!(s.top_n_sigma >= 0.0f && std::isfinite(s.top_n_sigma))) {
    fail(kBad, "row ", row, ": top_n_sigma must be finite and not negative, not ", s.top_n_sigma);
  }
  if (!(s.xtc_probability >= 0.0f && s.xtc_probability <= 1.0f)) {
    fail(kBad, "row ", row, ": xtc_probability must lie in [0, 1], not ", s.xtc_probability);
  }
  check_share("xtc_threshold", s.xtc_threshold);
}

void check_rows(const char* name, const py::array& vector, int64_t rows) {
  if (vector.ndim() != 1 || vector.shape(0) != rows) {
    fail(kBad, name, ": needs one entry for each of the ", rows, " rows");
  }
}

// typical_p, top_n_sigma, xtc_probability, xtc_threshold
using Filters = std::tuple<Vector<float>, Vector<float>, Vector<float>, Vector<float>>;

void check_filters(const Filters& filters, int64_t rows) {
  check_rows("typical_p", std::get<0>(filters), rows);
  check_rows("top_n_sigma", std::get<1>(filters), rows);
  check_rows("xtc_probability", std::get<2>(filters), rows);
  check_rows("xtc_threshold", std::get<3>(filters), rows);
}

FilterOrder order_of(const std::optional<Vector<uint8_t>>& numbers) {
  if (!numbers) return kFilterOrder;
  FilterOrder order{};
  uint32_t seen = 0;
  const bool is_whole = numbers->ndim() == 1 && numbers->shape(0) == kFilters;
  for (int64_t i = 0; is_whole && i < kFilters; i++) {
    const uint8_t number = numbers->data()[i];
    if (number < kFilters) seen |= 1u << number;
    order[static_cast<size_t>(i)] = static_cast<Filter>(number);
  }
  if (seen != (1u << kFilters) - 1) {
    fail(kBad, "order: must number each of the ", kFilters, " filters once");
  }
  return order;
}

using Masks = std::tuple<Vector<int32_t>, Vector<uint32_t>>;  // rows, masks
using Changes =
    std::tuple<Vector<int32_t>, Vector<int32_t>, Vector<float>, Vector<float>>;  // rows, ids, penalties, biases

// Checks the row of each entry: rows ascend.
void check_ascending(const char* name, const Vector<int32_t>& of, int64_t rows) {
  int32_t last = 0;
  for (int64_t i = 0; i < of.size(); i++) {
    const int32_t row = of.data()[i];
    if (row < last || row >= rows) fail(kBad, name, ": rows must ascend and be below ", rows);
    last = row;
  }
}

void check_masks(const Masks& masks, int64_t rows, int64_t vocab) {
  const auto& [of, words] = masks;
  if (of.ndim() != 1 || words.ndim() != 2 || words.shape(0) != of.shape(0) || words.shape(1) != mask_words(vocab)) {
    fail(kBad, "masks: needs (masks,) rows and (masks, ", mask_words(vocab), ") words");
  }
  check_ascending("masks", of, rows);
}

void check_changes(const Changes& changes, int64_t rows, int64_t vocab) {
  const auto& [of, ids, penalties, biases] = changes;
  if (of.ndim() != 1) fail(kBad, "changes: needs one row for each");
  const int64_t count = of.shape(0);
  if (ids.ndim() != 1 || penalties.ndim() != 1 || biases.ndim() != 1 || ids.shape(0) != count ||
      penalties.shape(0) != count || biases.shape(0) != count) {
    fail(kBad, "changes: needs one id, penalty and bias for each of the ", count, " rows");
  }
  check_ascending("changes", of, rows);
  for (int64_t i = 0; i < count; i++) {
    const int32_t id = ids.data()[i];
    const float penalty = penalties.data()[i], bias = biases.data()[i];
    if (id < 0 || id >= vocab) fail(kBad, "changes: id ", id, " is not in the vocabulary of ", vocab);
    if (!(penalty > 0.0f && std::isfinite(penalty))) {
      fail(kBad, "changes: a penalty must be finite and above 0, not ", penalty);
    }
    if (!std::isfinite(bias)) fail(kBad, "changes: a bias must be finite, not ", bias);
  }
}

// Hands out the masks and changes of each row in turn.
class ChangesOfRows {
 public:
  ChangesOfRows(const std::optional<Masks>& masks, const std::optional<Changes>& changes, int64_t rows, int64_t vocab)
      : words_(mask_words(vocab)) {
    if (masks) {
      check_masks(*masks, rows, vocab);
      mask_rows_ = std::get<0>(*masks).data();
      masks_ = std::get<1>(*masks).data();
      mask_count_ = std::get<0>(*masks).size();
    }
    if (changes) {
      check_changes(*changes, rows, vocab);
      change_rows_ = std::get<0>(*changes).data();
      ids_ = std::get<1>(*changes).data();
      penalties_ = std::get<2>(*changes).data();
      biases_ = std::get<3>(*changes).data();
      change_count_ = std::get<0>(*changes).size();
    }
  }

  // Called for rows in ascending order.
  RowChanges next(int64_t row) {
    RowChanges found;
    found.masks = masks_ + mask_ * words_;
    for (; mask_ < mask_count_ && mask_rows_[mask_] == row; mask_++) found.mask_count++;
    found.ids = ids_ + change_;
    found.penalties = penalties_ + change_;
    found.biases = biases_ + change_;
    for (; change_ < change_count_ && change_rows_[change_] == row; change_++) found.change_count++;
    return found;
  }

 private:
  int64_t words_;
  int64_t mask_ = 0, mask_count_ = 0, change_ = 0, change_count_ = 0;
  const int32_t *mask_rows_ = nullptr, *change_rows_ = nullptr, *ids_ = nullptr;
  const uint32_t* masks_ = nullptr;
  const float *penalties_ = nullptr, *biases_ = nullptr;
};

void sample(const py::array_t<float>& logits, const Vector<float>& temperature, const Vector<int32_t>& top_k,
            const Vector<float>& top_p, const Vector<float>& min_p, const Vector<uint64_t>& seed,
            const Vector<int64_t>& position, py::array_t<int32_t> out, const std::optional<Masks>& masks,
            const std::optional<Changes>& changes, const std::optional<Filters>& filters,
            const std::optional<Vector<uint8_t>>& order) {
  if (logits.ndim() != 2 || logits.shape(1) < 1 || logits.shape(1) > kMostTokens ||
      logits.strides(1) != sizeof(float)) {
    fail(kBad, "logits: needs (samples, vocab) with contiguous rows of 1 to ", kMostTokens, " tokens");
  }
  const int64_t rows = logits.shape(0);
  check_rows("temperature", temperature, rows);
  check_rows("top_k", top_k, rows);
  check_rows("top_p", top_p, rows);
  check_rows("min_p", min_p, rows);
  check_rows("seed", seed, rows);
  check_rows("position", position, rows);
  check_rows("out", out, rows);
  if (filters) check_filters(*filters, rows);
  const FilterOrder filter_order = order_of(order);
  const auto row_bytes = logits.strides(0);
  const char* base = reinterpret_cast<const char*>(logits.data());
  auto ids = out.mutable_unchecked<1>();
  ChangesOfRows changes_of(masks, changes, rows, logits.shape(1));
  // A small batch keeps the GIL: another thread could hold it for a switch interval, longer than a few rows take.
  std::optional<py::gil_scoped_release> released;
  if (rows * logits.shape(1) >= kMany) released.emplace();
  for (int64_t row = 0; row < rows; row++) {
    SamplingSettings settings{temperature.data()[row], top_k.data()[row], top_p.data()[row],
                              min_p.data()[row],       seed.data()[row],  position.data()[row]};
    if (filters) {
      settings.typical_p = std::get<0>(*filters).data()[row];
      settings.top_n_sigma = std::get<1>(*filters).data()[row];
      settings.xtc_probability = std::get<2>(*filters).data()[row];
      settings.xtc_threshold = std::get<3>(*filters).data()[row];
    }
    check(settings, row);
    const auto* x = reinterpret_cast<const float*>(base + row * row_bytes);
    ids(row) = sample_row(x, logits.shape(1), settings, changes_of.next(row), filter_order);
  }
}

}  // namespace

void bind_sampling(py::module_& m) {
  m.def("sample", &sample, py::arg("logits").noconvert(), py::arg("temperature"), py::arg("top_k"), py::arg("top_p"),
        py::arg("min_p"), py::arg("seed"), py::arg("position"), py::arg("out").noconvert(),
        py::arg("masks") = py::none(), py::arg("changes") = py::none(), py::arg("filters") = py::none(),
        py::arg("order") = py::none(),
        "Pick one id per row as docs/numerics.md says; NOT_FINITE or NOTHING_ALLOWED where there is none.");
  py::list names;
  for (const char* name : kFilterNames) names.append(name);
  m.attr("FILTERS") = py::tuple(names);
  m.attr("NOT_FINITE") = kNotFinite;
  m.attr("NOTHING_ALLOWED") = kNothingAllowed;
  m.def("philox", &philox4x32_10, py::arg("key"), py::arg("counter"),
        "Philox4x32-10 of a key of two and a counter of four 32-bit words.");
}

}  // namespace infeng
