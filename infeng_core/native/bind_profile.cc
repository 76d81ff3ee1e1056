// What a program measured, for Python: structs become NumPy's structured arrays.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include "bindings.h"
#include "names.h"
#include "program.h"

namespace py = pybind11;

namespace infeng {
namespace {

struct PhaseRow {
  int32_t op;
  int32_t kernel;
  int32_t phase;
  int64_t calls;
  int64_t rows;
  int64_t tiles;
  int64_t wall_ns;
  int64_t gap_ns;
  int64_t macs;
  int64_t bytes;
};

// The phases that ran, in the order of the program, and each worker's part of them.
struct Reading {
  int64_t steps = 0;
  int64_t rows = 0;
  int64_t step_ns = 0;
  int64_t tail_ns = 0;
  int threads = 0;
  std::vector<PhaseRow> phases;
  std::vector<WorkerTotals> parts;  // (phases, threads)
  std::vector<std::vector<Event>> events;
};

Reading read(const Program& program, const Profile& profile) {
  Reading out{profile.steps, profile.rows, profile.step_ns, profile.tail_ns, profile.threads(), {}, {}, {}};
  for (int op = 0; op < program.op_count(); ++op) {
    const int kernels = static_cast<int>(program.op(op).bindings.size());
    for (int index = 0; index < kernels * kPhases; ++index) {
      const int kernel = index / kPhases;
      const int phase = index % kPhases;
      const int64_t slot = profile.slot(op, kernel, phase);
      const PhaseTotals& t = profile.phase(slot);
      if (t.calls == 0) continue;
      out.phases.push_back({op, kernel, phase, t.calls, t.rows, t.tiles, t.wall_ns, t.gap_ns, t.macs, t.bytes});
      for (int w = 0; w < out.threads; ++w) out.parts.push_back(profile.part(slot, w));
    }
  }
  for (int w = 0; w < out.threads; ++w) out.events.push_back(profile.events(w));
  return out;
}

template <class T>
py::array_t<T> array(const std::vector<T>& values) {
  return py::array_t<T>(static_cast<py::ssize_t>(values.size()), values.data());
}

}  // namespace

py::dict profile_read(const Program& program) {
  Reading reading;
  {
    const py::gil_scoped_release release;  // a step in flight on another thread may need it to end
    program.read_profile([&](const Profile& profile) { reading = read(program, profile); });
  }
  py::list events;
  for (const auto& worker : reading.events) events.append(array(worker));
  const auto phases = static_cast<py::ssize_t>(reading.phases.size());
  py::dict out;
  out["steps"] = reading.steps;
  out["rows"] = reading.rows;
  out["step_ns"] = reading.step_ns;
  out["tail_ns"] = reading.tail_ns;
  out["phases"] = array(reading.phases);
  out["workers"] = array(reading.parts).reshape({phases, static_cast<py::ssize_t>(reading.threads)});
  out["events"] = events;
  return out;
}

py::list describe_ops(const Program& program) {
  py::list out;
  for (int64_t index = 0; index < program.op_count(); ++index) {
    const Op& op = program.op(index);
    py::list kernels;
    for (const Binding& binding : op.bindings)
      kernels.append(py::make_tuple(binding.rows, binding.kernel->full_name()));
    py::dict each;
    each["op"] = name_of(Vocabulary::op, op.problem.op);
    each["epilogues"] = epilogue_names(op.problem.epilogues);
    each["kernels"] = kernels;
    out.append(each);
  }
  return out;
}

void bind_profile() {
  PYBIND11_NUMPY_DTYPE(PhaseRow, op, kernel, phase, calls, rows, tiles, wall_ns, gap_ns, macs, bytes);
  PYBIND11_NUMPY_DTYPE(WorkerTotals, busy_ns, late_ns, tiles);
  PYBIND11_NUMPY_DTYPE(Event, begin_ns, end_ns, step, op, kernel, phase, rows, tiles);
}

}  // namespace infeng
