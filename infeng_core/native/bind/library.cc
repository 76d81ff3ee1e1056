#include <infeng/extension/error.h>

#include <pybind11/stl.h>

#include <optional>
#include <tuple>

#include "bind/bindings.h"
#include "bind/records.h"
#include "library/library.h"
#include "machine/device.h"
#include "program/problem.h"
#include "vocabulary/names.h"

namespace py = pybind11;
using namespace py::literals;

namespace infeng {
namespace {

using OptionalName = std::optional<std::string>;
using Names = std::vector<std::string>;

uint32_t number_or_none(Vocabulary vocabulary, const OptionalName& name) {
  return name ? number_of(vocabulary, *name) : 0;
}

OptionalName name_or_none(Vocabulary vocabulary, uint32_t number) {
  return number == 0 ? OptionalName() : name_of(vocabulary, number);
}

// A step of a problem in Python: its name, or (name, scalar, limit) if it has scalars.
infeng_epilogue step_of(const py::handle& object) {
  if (py::isinstance<py::str>(object)) return epilogue_of(object.cast<std::string>());
  const auto fields = object.cast<std::tuple<std::string, float, float>>();
  infeng_epilogue step = epilogue_of(std::get<0>(fields));
  step.scalar = std::get<1>(fields);
  step.limit = std::get<2>(fields);
  return step;
}

Problem make_problem(const std::string& op, const OptionalName& weight, const OptionalName& act, const OptionalName& kv,
                     const py::sequence& epilogues, const Names& needs, std::pair<int64_t, int64_t> rows, int64_t n,
                     int64_t k, int64_t context, int32_t heads, int32_t kv_heads, int32_t head_dim, int32_t v_head_dim,
                     int32_t workers, int32_t experts, int32_t top_k) {
  if (rows.first < 1 || rows.second < rows.first) {
    fail(kBad, "rows (", rows.first, ", ", rows.second, ") is not a range from 1 up");
  }
  Problem problem;
  infeng_problem& p = problem.abi;
  p.op = number_of(Vocabulary::op, op);
  p.weight_format = number_or_none(Vocabulary::weight, weight);
  p.act_format = number_or_none(Vocabulary::act, act);
  p.kv_format = number_or_none(Vocabulary::kv, kv);
  for (const py::handle& each : epilogues) problem.add(step_of(each));
  for (const std::string& name : needs) p.needs |= INFENG_NEED_BIT(number_of(Vocabulary::need, name));
  p.rows_min = rows.first;
  p.rows_max = rows.second;
  p.n = n;
  p.k = k;
  p.context = context;
  p.heads = heads;
  p.kv_heads = kv_heads;
  p.head_dim = head_dim;
  p.v_head_dim = v_head_dim == 0 ? head_dim : v_head_dim;
  if (p.v_head_dim != p.head_dim) p.needs |= INFENG_NEED_BIT(INFENG_NEED_HEAD_SIZES);
  p.workers = workers;
  p.experts = experts;
  p.top_k = top_k;
  return problem;
}

Names step_names(const Problem& problem) {
  Names names;
  for (const infeng_epilogue& step : problem.steps()) names.push_back(name_of(step));
  return names;
}

// The steps in the form that the constructor takes.
py::list steps(const Problem& problem) {
  py::list out;
  for (const infeng_epilogue& step : problem.steps()) {
    if (step.scalar == 0 && step.limit == 0) {
      out.append(name_of(step));
    } else {
      out.append(py::make_tuple(name_of(step), step.scalar, step.limit));
    }
  }
  return out;
}

py::tuple fields(const Problem& problem) {
  const infeng_problem& p = problem.abi;
  return py::make_tuple(name_of(Vocabulary::op, p.op), name_or_none(Vocabulary::weight, p.weight_format),
                        name_or_none(Vocabulary::act, p.act_format), name_or_none(Vocabulary::kv, p.kv_format),
                        py::tuple(steps(problem)), py::tuple(py::cast(need_names(p.needs))),
                        std::make_pair(p.rows_min, p.rows_max), p.n, p.k, p.context, p.heads, p.kv_heads, p.head_dim,
                        p.v_head_dim, p.workers, p.experts, p.top_k);
}

void bind_problem(py::module_& m) {
  using Words = OptionalName (*)(const Problem&);
  const auto number = [](auto member) { return [member](const Problem& p) { return p.abi.*member; }; };
  const Words weight = [](const Problem& p) { return name_or_none(Vocabulary::weight, p.abi.weight_format); };
  const Words act = [](const Problem& p) { return name_or_none(Vocabulary::act, p.abi.act_format); };
  const Words kv = [](const Problem& p) { return name_or_none(Vocabulary::kv, p.abi.kv_format); };
  py::class_<Problem>(m, "Problem", "What a kernel is asked to be good for.")
      .def(py::init(&make_problem), "op"_a, py::kw_only(), "weight"_a = py::none(), "act"_a = py::none(),
           "kv"_a = py::none(), "epilogues"_a = py::tuple(), "needs"_a = Names(), "rows"_a = std::make_pair(1, 1),
           "n"_a = 0, "k"_a = 0, "context"_a = 0, "heads"_a = 0, "kv_heads"_a = 0, "head_dim"_a = 0, "v_head_dim"_a = 0,
           "workers"_a = 1, "experts"_a = 0, "top_k"_a = 0)
      .def_property_readonly("op", [](const Problem& p) { return name_of(Vocabulary::op, p.abi.op); })
      .def_property_readonly("weight", weight)
      .def_property_readonly("act", act)
      .def_property_readonly("kv", kv)
      .def_property_readonly("epilogues", &step_names)
      .def_property_readonly("steps", &steps)
      .def_property_readonly("needs", [](const Problem& p) { return need_names(p.abi.needs); })
      .def_property_readonly("rows", [](const Problem& p) { return std::make_pair(p.abi.rows_min, p.abi.rows_max); })
      .def_property_readonly("n", number(&infeng_problem::n))
      .def_property_readonly("k", number(&infeng_problem::k))
      .def_property_readonly("context", number(&infeng_problem::context))
      .def_property_readonly("heads", number(&infeng_problem::heads))
      .def_property_readonly("kv_heads", number(&infeng_problem::kv_heads))
      .def_property_readonly("head_dim", number(&infeng_problem::head_dim))
      .def_property_readonly("v_head_dim", number(&infeng_problem::v_head_dim))
      .def_property_readonly("workers", number(&infeng_problem::workers))
      .def_property_readonly("experts", number(&infeng_problem::experts))
      .def_property_readonly("top_k", number(&infeng_problem::top_k))
      .def("__eq__",
           [](const Problem& a, const py::object& b) {
             return py::isinstance<Problem>(b) && fields(a).equal(fields(b.cast<const Problem&>()));
           })
      .def("__hash__", [](const Problem& p) { return py::hash(fields(p)); })
      .def("__repr__", [](const Problem& p) {
        return py::str(
                   "Problem({!r}, weight={!r}, act={!r}, kv={!r}, epilogues={!r}, needs={!r}, rows={!r}, n={}, k={}, "
                   "context={}, heads={}, kv_heads={}, head_dim={}, v_head_dim={}, workers={}, experts={}, top_k={})")
            .format(*fields(p));
      });
}

py::list kernels_of(const Library& library) {
  py::list kernels;
  for (const auto& kernel : library.kernels) kernels.append(std::const_pointer_cast<Kernel>(kernel));
  return kernels;
}

void bind_kernel(py::module_& m) {
  py::class_<Kernel, std::shared_ptr<Kernel>>(m, "Kernel", "One kernel of an opened library.")
      .def_property_readonly("library", [](const Kernel& k) { return k.library->name; })
      .def_property_readonly("device", [](const Kernel& k) { return k.library->device; })
      .def_property_readonly("siblings", [](const Kernel& k) { return kernels_of(*k.library); })
      .def_readonly("name", &Kernel::name)
      .def_property_readonly("op", [](const Kernel& k) { return name_of(Vocabulary::op, k.abi.op); })
      .def_readonly("features", &Kernel::features)
      .def_property_readonly("numerics", [](const Kernel& k) { return name_of(Vocabulary::numerics, k.abi.numerics); })
      .def_property_readonly("kind", [](const Kernel& k) { return name_of(Vocabulary::kind, k.abi.kind); })
      .def_readonly("bound", &Kernel::bound)
      .def_property_readonly("priority", [](const Kernel& k) { return k.abi.priority; })
      .def_property_readonly("fuses", [](const Kernel& k) { return epilogue_names(k.abi.fuses, k.abi.handles); })
      .def_property_readonly("handles", [](const Kernel& k) { return need_names(k.abi.handles); })
      .def(
          "accepts", [](const Kernel& k, const Problem& problem) { return k.accepts(problem.abi); }, "problem"_a,
          "Return whether this kernel can do the problem.")
      .def(
          "workspace",
          [](const Kernel& k, const Problem& problem) {
            const infeng_workspace w = k.workspace(problem.abi);
            return records::workspace(w.shared, w.per_worker, w.align);
          },
          "problem"_a, "Return the Workspace, in bytes.")
      .def("__eq__", [](const Kernel& a,
                        const py::object& b) { return py::isinstance<Kernel>(b) && &a == &b.cast<const Kernel&>(); })
      .def("__hash__", [](const Kernel& k) { return reinterpret_cast<uintptr_t>(&k) >> 4; })
      .def("__repr__", [](const Kernel& k) { return "<Kernel " + k.full_name() + ">"; });
}

}  // namespace

void bind_library(py::module_& m) {
  m.attr("ABI_VERSION") = py::make_tuple(INFENG_ABI_MAJOR, INFENG_ABI_MINOR);
  m.attr("NUMERICS") = INFENG_NUMERICS;
  m.attr("ABI_SINCE") = INFENG_ABI_SINCE;
  bind_problem(m);
  bind_kernel(m);
  py::class_<Device, std::shared_ptr<Device>>(m, "Device", "A device on which a library's kernels compute.")
      .def_property_readonly("library", &Device::library)
      .def_property_readonly("name", [](const Device& d) { return d.describe().name; })
      .def_property_readonly("why", [](const Device& d) { return d.describe().why; })
      .def("memory", &Device::memory, "Return the bytes that are free, and all bytes. Raises NativeError.");
  py::class_<Library, std::shared_ptr<Library>>(m, "Library", "A kernel library; it stays loaded for ever.")
      .def_readonly("name", &Library::name)
      .def_readonly("version", &Library::version)
      .def_readonly("path", &Library::path)
      .def_readonly("formats", &Library::formats)
      .def_readonly("ops", &Library::ops)
      .def_readonly("faults", &Library::faults)
      .def_readonly("unknown", &Library::unknown)
      .def_readonly("device", &Library::device)
      .def_property_readonly("abi", [](const Library& l) { return std::make_pair(l.abi_major, l.abi_minor); })
      .def_property_readonly("kernels", &kernels_of)
      .def("__repr__", [](const Library& l) { return "<Library " + l.name + " " + l.version + ">"; });
  m.def(
      "open_library",
      [](const std::string& path, const std::string& features) {
        return std::const_pointer_cast<Library>(open_library(path, features));
      },
      "path"_a, "features"_a = "",
      "Open a kernel library and read its description; ``features`` are the CPU features it may use, comma separated. "
      "Raises NativeError: not_found, bad_file, truncated, wrong_arch, dlopen_failed, missing_symbol, entry_threw, "
      "entry_failed, abi_major, abi_minor, bad_struct, bad_extension, bad_format, null_function.");
}

}  // namespace infeng
