// Python bindings of Program: arrays and lists become the plain types of program.h.
#include <infeng/extension/error.h>

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>

#include "bind/bindings.h"
#include "bind/records.h"
#include "program/program.h"
#include "vocabulary/names.h"

namespace py = pybind11;
using namespace py::literals;

namespace infeng {
namespace {

using PyBindings = std::vector<std::pair<int64_t, std::shared_ptr<Kernel>>>;
using OptionalId = std::optional<int>;

// A program that copies vectors that are not 64-byte aligned; an array that several ops share is copied once.
class BoundProgram : public Program {
 public:
  using Program::Program;

  // None becomes a constant without data.
  Constant optional_constant(const py::object& object, const char* what, bool always_copied = false) {
    return object.is_none() ? Constant() : constant(object, what, always_copied);
  }

  // Whether these kernels compute on the host.
  bool is_on_host(const PyBindings& kernels) const {
    return device() == nullptr || (!kernels.empty() && kernels.front().second->library->device == nullptr);
  }

  // `always_copied`: for arrays that were made for the program, whose alignment is a matter of chance, so that equal
  // programs take equal memory.
  // `on_host`: for kernels there, in a program of a device too.
  Constant constant(const py::object& object, const char* what, bool always_copied = false, bool on_host = false) {
    const auto array = py::array_t<float, py::array::c_style>::ensure(object);
    if (!py::isinstance<py::array_t<float>>(object) || !array) {
      PyErr_Clear();
      fail(kBad, what, ": needs a float32 array");
    }
    on_host = on_host || device() == nullptr;
    const auto known = copies_.find({object.ptr(), on_host});
    if (known != copies_.end()) return known->second.second;
    Constant constant{array.data(), array.size(), nullptr};
    if (!always_copied && on_host && reinterpret_cast<uintptr_t>(array.data()) % kLine == 0) {
      constant.owner = hold_buffer(array, what).owner;
      return constant;
    }
    constant.data = copy_constant(array.data(), array.size(), on_host);
    // Keeping the object alive keeps its address, the key, unique while ops are added.
    copies_.emplace(std::make_pair(object.ptr(), on_host), std::make_pair(object, constant));
    return constant;
  }

  void finish_bound() {
    finish();
    copies_.clear();
  }

 private:
  std::map<std::pair<PyObject*, bool>, std::pair<py::object, Constant>> copies_;
};

// An epilogue step in Python; its array becomes a Constant when the step is added to a program.
struct PyEpilogue {
  uint32_t kind;
  int value = -1;
  py::object array = {};
  uint32_t function = INFENG_FUNCTION_IDENTITY;
  float scalar = 0;
  float limit = 0;
};

// Makes a step; throws Error "unknown_name" if its kind cannot have this function.
PyEpilogue step(uint32_t kind, const std::string& function, int value = -1, float scalar = 0, float limit = 0) {
  infeng_epilogue named{};
  named.kind = kind;
  named.function = number_of(Vocabulary::function, function);
  if (epilogue_of(name_of(named)).kind != kind) fail("unknown_name", function, " is no function of this step");
  return {kind, value, {}, named.function, scalar, limit};
}

Epilogues specs(BoundProgram& program, const std::vector<PyEpilogue>& epilogues, bool on_host = false) {
  Epilogues out;
  for (const PyEpilogue& epilogue : epilogues) {
    EpilogueSpec spec{epilogue.kind, epilogue.value, {}, epilogue.function, epilogue.scalar, epilogue.limit};
    if (epilogue.array) spec.constant = program.constant(epilogue.array, "epilogue", false, on_host);
    out.push_back(std::move(spec));
  }
  return out;
}

// Program::row_op() reports missing operands.
RowOperands row_operands(BoundProgram& program, const OpKind& kind, bool gather, bool on_demand,
                         const py::dict& given) {
  RowOperands out{.gather = gather, .on_demand = on_demand};
  for (const auto& [key, object] : given) {
    const auto name = key.cast<std::string>();
    const auto known = std::ranges::find(kind.operands, name, &Operand::name);
    if (known == kind.operands.end() || known->kind == OperandKind::row_index) {
      fail(kBad, kind.name, ": has no operand ", name);
    }
    if (known->kind == OperandKind::rows) out.rows[name] = object.cast<int>();
    if (known->kind == OperandKind::vector)
      out.vectors[name] = program.constant(py::reinterpret_borrow<py::object>(object), known->name);
    if (known->kind == OperandKind::scalar) out.scalars[name] = object.cast<float>();
  }
  return out;
}

// {row op: its operands}, with the ops of libraries that are open.
py::dict row_ops() {
  constexpr const char* kKinds[] = {"rows", "vector", "scalar", "row_index"};
  py::dict found;
  for (const OpKind* kind : all_op_kinds()) {
    if (kind->operands.empty()) continue;
    py::list operands;
    for (const Operand& each : kind->operands) {
      operands.append(records::operand(each.name, kKinds[static_cast<int>(each.kind)], each.value));
    }
    found[kind->name] = py::tuple(operands);
  }
  return found;
}

// OPS: the names of the core's own ops.
void bind_op_kinds(py::module_& m) {
  py::list names;
  for (const OpKind& kind : op_kinds()) names.append(kind.name);
  m.attr("OPS") = py::tuple(names);
  m.def("row_ops", &row_ops, "Return the ops over rows alone, each with its operands; those of open libraries too.");
}

Bindings bindings(const PyBindings& kernels) {
  Bindings out;
  for (const auto& [rows, kernel] : kernels) out.push_back({rows, kernel});
  return out;
}

std::span<const int32_t> integers(const py::array& array, const char* what, int64_t columns) {
  const bool shaped = columns == 0 ? array.ndim() == 1 : array.ndim() == 2 && array.shape(1) == columns;
  if (!array.dtype().equal(py::dtype::of<int32_t>()) || !(array.flags() & py::array::c_style) || !shaped) {
    fail(kBad, what, ": needs a contiguous int32 array of ", columns == 0 ? "one dimension" : "shape (segments, 4)");
  }
  return {static_cast<const int32_t*>(array.data()), static_cast<size_t>(array.size())};
}

// Reads (row_begin, row_end, adapter, weight) of each range into memory that is kept from step to step.
class HeldRows {
 public:
  HeldRows() = default;
  ~HeldRows() { rows_.clear(); }
  HeldRows(const HeldRows&) = delete;
  HeldRows& operator=(const HeldRows&) = delete;

  std::span<const AdapterRows> take(const py::sequence& adapters) {
    for (const py::handle& each : adapters) {
      if (!py::isinstance<py::tuple>(each) || py::len(each) != 4) {
        fail(kBad, "adapters: needs (row_begin, row_end, adapter, weight) for each range");
      }
      const auto range = py::reinterpret_borrow<py::tuple>(each);
      rows_.push_back({range[0].cast<int32_t>(), range[1].cast<int32_t>(), range[3].cast<float>(),
                       range[2].cast<std::shared_ptr<Adapter>>()});
    }
    return rows_;
  }

 private:
  std::vector<AdapterRows>& rows_ = memory();
  static std::vector<AdapterRows>& memory() {
    thread_local std::vector<AdapterRows> rows;
    return rows;
  }
};

// Makes a method of a function of Program, which pybind11 knows as BoundProgram only.
template <class Result, class Self, class... Args>
auto method(Result (*function)(Self&, Args...)) {
  using Bound = std::conditional_t<std::is_const_v<Self>, const BoundProgram, BoundProgram>;
  return [function](Bound& self, Args... args) { return function(self, std::forward<Args>(args)...); };
}

void run(Program& program, const py::array& tokens, const py::array& positions, const py::array& segments,
         const py::array& block_tables, const py::array& sample_rows, const py::sequence& adapters, bool on_demand) {
  HeldRows held;
  const Batch batch{integers(tokens, "tokens", 0),
                    integers(positions, "positions", 0),
                    integers(segments, "segments", 4),
                    integers(block_tables, "block_tables", 0),
                    integers(sample_rows, "sample_rows", 0),
                    held.take(adapters),
                    on_demand};
  const py::gil_scoped_release release;
  program.run(batch);
}

template <class T>
py::array_t<T> rows_of(T* data, int64_t rows, int64_t columns, int64_t stride, const py::object& owner) {
  constexpr int64_t kSize = sizeof(T);
  return py::array_t<T>({rows, columns}, {stride * kSize, kSize}, data, owner);
}

py::array_t<float> view(const py::object& self, int id, bool fetched) {
  auto& program = self.cast<BoundProgram&>();
  const Value& value = program.value(id);
  if (value.quantized) fail(kBad, "value ", id, " is an activation: use view_activation()");
  float* const x = program.seen(value.x, value.rows * value.stride, fetched);
  return rows_of(x, value.rows, value.columns, value.stride, self);
}

py::object view_routing(const py::object& self, int id) {
  auto& program = self.cast<BoundProgram&>();
  program.show_routing(id);
  const Routing& routing = program.routing_of(id);
  const auto& [chosen, weights, places, begin] = routing.for_host;
  const int64_t k = routing.top_k, rows = program.limits().rows;
  return records::routing_view(rows_of(chosen, rows, k, k, self), rows_of(weights, rows, k, k, self),
                               rows_of(places, rows, k, k, self),
                               rows_of(begin, 1, routing.experts + 1, routing.experts + 1, self));
}

py::object view_activation(const py::object& self, int id) {
  auto& program = self.cast<BoundProgram&>();
  const Value& value = program.value(id);
  if (!value.quantized) fail(kBad, "value ", id, " is a buffer: use view()");
  int8_t* const q = program.seen(value.q, value.rows * value.q_stride);
  float* const scale = program.seen(value.scale, value.rows * value.group_stride);
  int32_t* const sum = program.seen(value.sum, value.rows * value.group_stride);
  return records::activation_view(rows_of(q, value.rows, value.stride, value.q_stride, self),
                                  rows_of(scale, value.rows, value.groups, value.group_stride, self),
                                  rows_of(sum, value.rows, value.groups, value.group_stride, self));
}

void bind_epilogue(py::module_& m) {
  py::class_<PyEpilogue>(m, "Epilogue", "One step of an epilogue list; made by the static methods.")
      .def_static(
          "bias", [](const py::object& vector) { return PyEpilogue{INFENG_EPILOGUE_BIAS, -1, vector}; }, "vector"_a)
      .def_static(
          "row_scale", [](const py::object& vector) { return PyEpilogue{INFENG_EPILOGUE_ROW_SCALE, -1, vector}; },
          "vector"_a)
      .def_static(
          "residual", [](int buffer) { return PyEpilogue{INFENG_EPILOGUE_RESIDUAL, buffer}; }, "buffer"_a)
      .def_static("silu_mul", [] { return step(INFENG_EPILOGUE_GATED_MUL, "silu"); })
      .def_static(
          "gated_mul",
          [](const std::string& function, float scalar, float limit) {
            return step(INFENG_EPILOGUE_GATED_MUL, function, -1, scalar, limit);
          },
          "function"_a, "scalar"_a = 0.0f, "limit"_a = 0.0f)
      .def_static(
          "activate", [](const std::string& function) { return step(INFENG_EPILOGUE_ACTIVATE, function); },
          "function"_a)
      .def_static(
          "mul", [](int buffer, const std::string& function) { return step(INFENG_EPILOGUE_MUL, function, buffer); },
          "buffer"_a, "function"_a = "identity")
      .def_static(
          "scale", [](float scalar) { return step(INFENG_EPILOGUE_SCALE, "identity", -1, scalar); }, "scalar"_a)
      .def_static(
          "softcap", [](float scalar) { return step(INFENG_EPILOGUE_SOFTCAP, "identity", -1, scalar); }, "scalar"_a)
      .def_static(
          "quantize", [](int activation) { return PyEpilogue{INFENG_EPILOGUE_QUANTIZE, activation}; }, "activation"_a)
      .def_static("lora", [](int slot) { return PyEpilogue{INFENG_EPILOGUE_LORA, slot}; }, "slot"_a);
}

using Class = py::class_<BoundProgram, std::shared_ptr<BoundProgram>>;

void bind_ops(Class& program) {
  using List = std::vector<PyEpilogue>;
  using WeightPtr = std::shared_ptr<Weight>;
  using CachePtr = std::shared_ptr<KvCache>;
  program
      .def(
          "embed",
          [](BoundProgram& self, const PyBindings& kernels, WeightPtr weight, int out, const std::string& module) {
            self.embed(bindings(kernels), std::move(weight), out, module);
          },
          "kernels"_a, py::arg("weight").none(false), "out"_a, py::kw_only(), "module"_a = "")
      .def(
          "rmsnorm",
          [](BoundProgram& self, const PyBindings& kernels, int x, const py::object& weight, float eps, OptionalId out,
             const List& epilogues, bool gather, const std::string& module, float offset, int64_t heads, int64_t size,
             int64_t column, bool on_demand) {
            Constant vector = self.optional_constant(weight, "rmsnorm weight");
            if (vector.data == nullptr) vector.size = size > 0 ? size : self.value(x).columns;
            self.rmsnorm(bindings(kernels), x, vector, eps, out.value_or(-1), specs(self, epilogues),
                         NormSpec{offset, heads, column, gather, on_demand}, module);
          },
          "kernels"_a, "x"_a, "weight"_a, "eps"_a, "out"_a, "epilogues"_a = List(), py::kw_only(),
          "gather_samples"_a = false, "module"_a = "", "offset"_a = 0.0f, "heads"_a = 1, "size"_a = 0, "column"_a = 0,
          "on_demand"_a = false, "``gather_samples``: read the sampled rows, write (samples, k).")
      .def(
          "linear",
          [](BoundProgram& self, const PyBindings& kernels, WeightPtr weight, int x, OptionalId out,
             const List& epilogues, const std::string& module) {
            self.linear(bindings(kernels), std::move(weight), x, out.value_or(-1), specs(self, epilogues), module);
          },
          "kernels"_a, py::arg("weight").none(false), "x"_a, "out"_a, "epilogues"_a = List(), py::kw_only(),
          "module"_a = "",
          "``x`` is a buffer (f32 and bf16 weights) or an activation (int weights): both share one numbering.")
      .def(
          "expert_linear",
          [](BoundProgram& self, const PyBindings& kernels, WeightPtr weight, int x, OptionalId out,
             const List& epilogues, int routing) {
            const bool on_host = self.is_on_host(kernels);
            self.expert_linear(bindings(kernels), std::move(weight), x, out.value_or(-1),
                               specs(self, epilogues, on_host), routing);
          },
          "kernels"_a, py::arg("weight").none(false), "x"_a, "out"_a, "epilogues"_a = List(), py::kw_only(),
          "routing"_a)
      .def(
          "route",
          [](BoundProgram& self, const PyBindings& kernels, int logits, int x, int out, int routing, int64_t columns,
             bool share_of_chosen, bool for_adapters) {
            self.route(bindings(kernels), logits, x, out, RouteSpec{routing, columns, share_of_chosen, for_adapters});
          },
          "kernels"_a, "logits"_a, "x"_a, "out"_a, py::kw_only(), "routing"_a, "columns"_a, "share_of_chosen"_a,
          "for_adapters"_a = false)
      .def(
          "combine",
          [](BoundProgram& self, const PyBindings& kernels, int x, int64_t columns, OptionalId out,
             const List& epilogues, int routing, OptionalId shared, OptionalId gate) {
            self.combine(bindings(kernels), x, columns, routing, out.value_or(-1), specs(self, epilogues),
                         shared.value_or(-1), gate.value_or(-1));
          },
          "kernels"_a, "x"_a, "columns"_a, "out"_a, "epilogues"_a = List(), py::kw_only(), "routing"_a,
          "shared"_a = py::none(), "gate"_a = py::none())
      .def(
          "shrink",
          [](BoundProgram& self, const PyBindings& kernels, const std::string& name, int x, int64_t k, int64_t panels,
             OptionalId routing) { return self.shrink(bindings(kernels), name, x, k, panels, routing.value_or(-1)); },
          "kernels"_a, "name"_a, "x"_a, py::kw_only(), "k"_a, "panels"_a, "routing"_a = py::none(),
          "Compute u before a linear of ``panels`` panels; return the slot for its LORA step.")
      .def("embedding_slot", &Program::embedding_slot, py::kw_only(), "vocabulary"_a, "panels"_a,
           "Return the slot for a LORA step behind the embeddings.")
      .def(
          "epilogue",
          [](BoundProgram& self, const PyBindings& kernels, int x, int64_t columns, OptionalId out,
             const List& epilogues) {
            self.epilogue(bindings(kernels), x, columns, out.value_or(-1), specs(self, epilogues));
          },
          "kernels"_a, "x"_a, "columns"_a, "out"_a, "epilogues"_a)
      .def(
          "row_op",
          [](BoundProgram& self, const std::string& op, const PyBindings& kernels, int64_t columns, OptionalId out,
             const List& epilogues, const py::dict& given, bool gather, bool on_demand) {
            const uint32_t number = number_of(Vocabulary::op, op);
            const RowOperands operands = row_operands(self, op_kind(number), gather, on_demand, given);
            self.row_op(number, bindings(kernels), columns, operands, out.value_or(-1), specs(self, epilogues));
          },
          "op"_a, "kernels"_a, "columns"_a, "out"_a, "epilogues"_a = List(), py::kw_only(), "operands"_a,
          "gather_samples"_a = false, "on_demand"_a = false, "Add a row op with its operands by name; see row_ops.")
      .def(
          "rope",
          [](BoundProgram& self, const PyBindings& kernels, int x, int64_t heads, int64_t kv_heads, int64_t head_dim,
             int64_t k_column, const py::array& cos, const py::array& sin, const py::object& q_norm,
             const py::object& k_norm, const py::object& q_scale, float eps, const std::string& module) {
            if (cos.ndim() != 2) fail(kBad, "rope: tables have shape (positions, rot / 2)");
            const RopeSpec spec{self.optional_constant(q_norm, "rope q_norm", true),
                                self.optional_constant(k_norm, "rope k_norm", true),
                                self.optional_constant(q_scale, "rope q_scale", true), eps};
            self.rope(bindings(kernels), x, heads, kv_heads, head_dim, k_column, self.constant(cos, "rope cos", true),
                      self.constant(sin, "rope sin", true), cos.shape(0), spec, module);
          },
          "kernels"_a, "x"_a, py::kw_only(), "heads"_a, "kv_heads"_a, "head_dim"_a, "k_column"_a, "cos"_a, "sin"_a,
          "q_norm"_a = py::none(), "k_norm"_a = py::none(), "q_scale"_a = py::none(), "eps"_a = 0.0f, "module"_a = "",
          "q starts at column 0 of ``x``, k at ``k_column``. An adapter replaces both norms of a ``module`` together, "
          "each padded to 16 values.")
      .def(
          "kv_append",
          [](BoundProgram& self, const PyBindings& kernels, int x, CachePtr cache, int64_t layer, int64_t k_column,
             int64_t v_column, int64_t table) {
            self.kv_append(bindings(kernels), x, std::move(cache), layer, k_column, v_column, table);
          },
          "kernels"_a, "x"_a, py::arg("cache").none(false), "layer"_a, py::kw_only(), "k_column"_a, "v_column"_a,
          "table"_a = 0)
      .def(
          "attention",
          [](BoundProgram& self, const PyBindings& kernels, int x, CachePtr cache, int64_t layer, int out,
             int64_t heads, int64_t window, float scale, float softcap, const std::string& mask,
             const py::object& sinks, const py::object& slopes, const List& epilogues, int64_t table) {
            const AttentionSpec spec{heads,
                                     window,
                                     scale,
                                     softcap,
                                     number_of(Vocabulary::mask, mask),
                                     self.optional_constant(sinks, "attention sinks"),
                                     self.optional_constant(slopes, "attention slopes"),
                                     table};
            self.attention(bindings(kernels), x, std::move(cache), layer, out, spec, specs(self, epilogues));
          },
          "kernels"_a, "x"_a, py::arg("cache").none(false), "layer"_a, "out"_a, py::kw_only(), "heads"_a,
          "window"_a = 0, "scale"_a, "softcap"_a = 0.0f, "mask"_a = "causal", "sinks"_a = py::none(),
          "slopes"_a = py::none(), "epilogues"_a = List(), "table"_a = 0);
}

}  // namespace

void bind_program(py::module_& m) {
  bind_op_kinds(m);
  bind_epilogue(m);
  Class program(m, "Program",
                "A flat list of ops bound to kernels; ``run`` executes one step without touching Python.");
  program
      .def(py::init([](std::shared_ptr<Pool> pool, int64_t max_rows, int64_t max_samples, int64_t max_segments,
                       int64_t context, int64_t tables, const Pages& pages, std::shared_ptr<Device> device) {
             return std::make_shared<BoundProgram>(std::move(pool),
                                                   Limits{max_rows, max_samples, max_segments, context, tables}, pages,
                                                   std::move(device));
           }),
           py::arg("pool").none(false), py::kw_only(), "max_rows"_a, "max_samples"_a, "max_segments"_a, "context"_a,
           "tables"_a = 1, "pages"_a = Pages{}, "device"_a = py::none())
      .def(
          "split",
          [](BoundProgram& self, int64_t memory, std::pair<double, double> host, std::pair<double, double> device,
             double link, double handoff, std::optional<uint64_t> seed) {
            self.split({memory, {host.first, host.second}, {device.first, device.second}, link, handoff, seed});
          },
          py::kw_only(), "memory"_a, "host"_a, "device"_a, "link"_a, "handoff"_a, "seed"_a = py::none())
      .def("hand_over", &Program::hand_over, "source"_a, "target"_a)
      .def("experts_chosen", &Program::experts_chosen, py::kw_only(), "on_device"_a)
      .def("buffer", &Program::buffer, "columns"_a, py::kw_only(), "samples"_a = false, "copies"_a = 1,
           "on_host"_a = false)
      .def("routing", &Program::routing, py::kw_only(), "experts"_a, "top_k"_a,
           "Make room for the result of one route op at a time; return its id.")
      .def(
          "open_adapters",
          [](BoundProgram& self, const std::string& dtype, int64_t columns, int64_t max_ranges) {
            self.open_adapters(number_of(Vocabulary::dtype, dtype), columns, max_ranges);
          },
          "dtype"_a, py::kw_only(), "columns"_a, "max_ranges"_a,
          "Make room for adapters stored as ``dtype``; comes before the ops.")
      .def(
          "set_branch",
          [](BoundProgram& self, std::optional<bool> has_adapters) {
            self.set_branch(!has_adapters   ? Branch::always
                            : *has_adapters ? Branch::with_adapters
                                            : Branch::without_adapters);
          },
          "has_adapters"_a, "Add ops for steps with, or without, a row that uses an adapter; None: for all steps.")
      .def("activation", &Program::activation, "columns"_a, py::kw_only(), "samples"_a = false, "copies"_a = 1,
           "group"_a = kGroup, "rotated"_a = 0, "on_host"_a = false,
           "Declare int8 rows with sums for each 64 of ``columns`` inputs and scales for each ``group`` of them.");
  bind_ops(program);
  program
      .def("adapter", method(&make_adapter), "dtype"_a, "tensors"_a, py::kw_only(), "embedding"_a = py::none(),
           "saved_tensors"_a = py::list(), "saved_vectors"_a = py::list(),
           "Copy an adapter into memory of its own. Any thread may call it while steps run.")
      .def("finish", &BoundProgram::finish_bound,
           "Size and take all scratch memory; no op may be added afterwards and ``run`` allocates nothing.")
      .def("run", method(&run), "tokens"_a, "positions"_a, "segments"_a, "block_tables"_a, "sample_rows"_a,
           "adapters"_a = py::tuple(), "on_demand"_a = false,
           "Run all ops on one batch; releases the GIL. Raises NativeError with the failing op, kernel and message.")
      .def("read_blocks", method(&read_blocks), "cache"_a, "blocks"_a,
           "Return copies of whole blocks, (blocks, block bytes) uint8; waits for a step.")
      .def("write_blocks", method(&write_blocks), "cache"_a, "blocks"_a, "data"_a,
           "Write copies from ``read_blocks`` to any blocks; waits for a step.")
      .def("copy_blocks", method(&copy_blocks), "cache"_a, "source"_a, "target"_a,
           "Copy whole blocks to others; waits for a step.")
      .def("cancel", &Program::cancel,
           "Make a run in flight stop between two ranges of tiles (any thread); it raises NativeError \"cancelled\".")
      .def("view", &view, "buffer"_a, py::kw_only(), "fetched"_a = false,
           "Return a buffer as (max rows, columns) float32, without padding; a view that the next run overwrites. Of a "
           "device, it is a copy that each run brings up to date; ``fetched``: only ``fetch`` does.")
      .def("fetch", &Program::fetch, "buffer"_a, "rows"_a, py::call_guard<py::gil_scoped_release>(),
           "Read the first rows of a device's buffer into its view; nothing to do on the host.")
      .def("view_activation", &view_activation, "activation"_a,
           "Return (q (rows, k padded to 64), scale (rows, groups), sum (rows, groups)), views.")
      .def("view_routing", &view_routing, "routing"_a,
           "Return (experts, weights and places (rows, top_k), begin (1, experts + 1)), views.")
      .def_property_readonly("scratch_bytes", &Program::scratch_bytes)
      .def_property_readonly("scratch_is_intact", &Program::scratch_is_intact)
      .def("op_count", &Program::op_count)
      .def("ops", method(&describe_ops), "Return {op, epilogues, kernels: [(most rows, name)]} of every op.")
      .def("profile", &Program::profile, "on"_a, py::kw_only(), "events"_a = 1 << 16, "groups"_a = std::vector<int>(),
           py::call_guard<py::gil_scoped_release>(),
           "Start measuring steps from zero and keep the latest ``events`` of each worker, or stop and discard the "
           "profile.")
      .def("profile_read", method(&profile_read),
           "Return the profile as NumPy arrays. Raises NativeError \"not_profiled\".");
}

}  // namespace infeng
