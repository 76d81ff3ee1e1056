#include <pybind11/stl.h>

#include <optional>
#include <tuple>

#include "bindings.h"
#include "error.h"
#include "library.h"
#include "names.h"

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

infeng_problem make_problem(const std::string& op, const OptionalName& weight, const OptionalName& act,
                            const OptionalName& kv, const Names& epilogues, std::pair<int64_t, int64_t> rows, int64_t n,
                            int64_t k, int64_t context, int32_t heads, int32_t kv_heads, int32_t head_dim,
                            int32_t workers) {
  if (rows.first < 1 || rows.second < rows.first) {
    fail("invalid_argument", "rows (", rows.first, ", ", rows.second, ") is not a range from 1 up");
  }
  infeng_problem problem{};
  problem.struct_size = sizeof problem;
  problem.op = number_of(Vocabulary::op, op);
  problem.weight_format = number_or_none(Vocabulary::weight, weight);
  problem.act_format = number_or_none(Vocabulary::act, act);
  problem.kv_format = number_or_none(Vocabulary::kv, kv);
  for (const std::string& name : epilogues) {
    problem.epilogues |= INFENG_EPILOGUE_BIT(number_of(Vocabulary::epilogue, name));
  }
  problem.rows_min = rows.first;
  problem.rows_max = rows.second;
  problem.n = n;
  problem.k = k;
  problem.context = context;
  problem.heads = heads;
  problem.kv_heads = kv_heads;
  problem.head_dim = head_dim;
  problem.workers = workers;
  return problem;
}

py::tuple fields(const infeng_problem& p) {
  return py::make_tuple(name_of(Vocabulary::op, p.op), name_or_none(Vocabulary::weight, p.weight_format),
                        name_or_none(Vocabulary::act, p.act_format), name_or_none(Vocabulary::kv, p.kv_format),
                        py::tuple(py::cast(epilogue_names(p.epilogues))), std::make_pair(p.rows_min, p.rows_max), p.n,
                        p.k, p.context, p.heads, p.kv_heads, p.head_dim, p.workers);
}

void bind_problem(py::module_& m) {
  py::class_<infeng_problem>(m, "Problem", "What a kernel is asked to be good for.")
      .def(py::init(&make_problem), "op"_a, py::kw_only(), "weight"_a = py::none(), "act"_a = py::none(),
           "kv"_a = py::none(), "epilogues"_a = Names(), "rows"_a = std::make_pair(1, 1), "n"_a = 0, "k"_a = 0,
           "context"_a = 0, "heads"_a = 0, "kv_heads"_a = 0, "head_dim"_a = 0, "workers"_a = 1)
      .def_property_readonly("op", [](const infeng_problem& p) { return name_of(Vocabulary::op, p.op); })
      .def_property_readonly("weight",
                             [](const infeng_problem& p) { return name_or_none(Vocabulary::weight, p.weight_format); })
      .def_property_readonly("act", [](const infeng_problem& p) { return name_or_none(Vocabulary::act, p.act_format); })
      .def_property_readonly("kv", [](const infeng_problem& p) { return name_or_none(Vocabulary::kv, p.kv_format); })
      .def_property_readonly("epilogues", [](const infeng_problem& p) { return epilogue_names(p.epilogues); })
      .def_property_readonly("rows", [](const infeng_problem& p) { return std::make_pair(p.rows_min, p.rows_max); })
      .def_readonly("n", &infeng_problem::n)
      .def_readonly("k", &infeng_problem::k)
      .def_readonly("context", &infeng_problem::context)
      .def_readonly("heads", &infeng_problem::heads)
      .def_readonly("kv_heads", &infeng_problem::kv_heads)
      .def_readonly("head_dim", &infeng_problem::head_dim)
      .def_readonly("workers", &infeng_problem::workers)
      .def("__eq__",
           [](const infeng_problem& a, const py::object& b) {
             return py::isinstance<infeng_problem>(b) && fields(a).equal(fields(b.cast<const infeng_problem&>()));
           })
      .def("__hash__", [](const infeng_problem& p) { return py::hash(fields(p)); })
      .def("__repr__", [](const infeng_problem& p) {
        return py::str(
                   "Problem({!r}, weight={!r}, act={!r}, kv={!r}, epilogues={!r}, rows={!r}, n={}, k={}, "
                   "context={}, heads={}, kv_heads={}, head_dim={}, workers={})")
            .format(*fields(p));
      });
}

void bind_kernel(py::module_& m) {
  py::class_<Kernel, std::shared_ptr<Kernel>>(m, "Kernel", "One kernel of an opened library.")
      .def_property_readonly("library", [](const Kernel& k) { return k.library->name; })
      .def_readonly("name", &Kernel::name)
      .def_property_readonly("op", [](const Kernel& k) { return name_of(Vocabulary::op, k.abi.op); })
      .def_readonly("features", &Kernel::features)
      .def_property_readonly("numerics", [](const Kernel& k) { return name_of(Vocabulary::numerics, k.abi.numerics); })
      .def_property_readonly("kind", [](const Kernel& k) { return name_of(Vocabulary::kind, k.abi.kind); })
      .def_property_readonly("priority", [](const Kernel& k) { return k.abi.priority; })
      .def_property_readonly("fuses", [](const Kernel& k) { return epilogue_names(k.abi.fuses); })
      .def("accepts", &Kernel::accepts, "problem"_a, "Return whether this kernel can do the problem.")
      .def(
          "workspace",
          [](const Kernel& k, const infeng_problem& problem) {
            const infeng_workspace w = k.workspace(problem);
            return std::make_tuple(w.shared, w.per_worker, w.align);
          },
          "problem"_a, "Return (shared, per_worker, align) in bytes.")
      .def("__eq__", [](const Kernel& a,
                        const py::object& b) { return py::isinstance<Kernel>(b) && &a == &b.cast<const Kernel&>(); })
      .def("__hash__", [](const Kernel& k) { return reinterpret_cast<uintptr_t>(&k) >> 4; })
      .def("__repr__", [](const Kernel& k) { return "<Kernel " + k.full_name() + ">"; });
}

}  // namespace

void bind_library(py::module_& m) {
  m.attr("ABI_VERSION") = py::make_tuple(INFENG_ABI_MAJOR, INFENG_ABI_MINOR);
  bind_problem(m);
  bind_kernel(m);
  py::class_<Library, std::shared_ptr<Library>>(m, "Library", "A kernel library; it stays loaded for ever.")
      .def_readonly("name", &Library::name)
      .def_readonly("version", &Library::version)
      .def_readonly("path", &Library::path)
      .def_property_readonly("abi", [](const Library& l) { return std::make_pair(l.abi_major, l.abi_minor); })
      .def_property_readonly("kernels",
                             [](const Library& l) {
                               py::list kernels;
                               for (const auto& kernel : l.kernels)
                                 kernels.append(std::const_pointer_cast<Kernel>(kernel));
                               return kernels;
                             })
      .def("__repr__", [](const Library& l) { return "<Library " + l.name + " " + l.version + ">"; });
  m.def(
      "open_library",
      [](const std::string& path, const std::string& features) {
        return std::const_pointer_cast<Library>(open_library(path, features));
      },
      "path"_a, "features"_a = "",
      "Open a kernel library and read its description; ``features`` are the CPU features it may use, comma separated. "
      "Raises NativeError: not_found, bad_file, truncated, wrong_arch, dlopen_failed, missing_symbol, entry_threw, "
      "entry_failed, abi_major, abi_minor, bad_struct, bad_extension, null_function.");
}

}  // namespace infeng
