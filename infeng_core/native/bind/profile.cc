// Python bindings of profiles: structs become NumPy's structured arrays.
#include <infeng/extension/error.h>

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <chrono>

#include "bind/bindings.h"
#include "bind/records.h"
#include "program/program.h"
#include "vocabulary/names.h"

namespace py = pybind11;
using namespace py::literals;

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
  int64_t macs;
  int64_t bytes;
};

struct WorkerRow {
  int64_t busy_ns;
  int64_t late_ns;
  int64_t tiles;
};

struct EventRow {
  int64_t begin_ns;
  int64_t end_ns;
  int32_t step;
  int32_t op;
  int32_t kernel;
  int32_t phase;
  int32_t rows;
  int32_t tiles;
};

// A profile in nanoseconds: the phases that ran, in the order of the program, and each worker's part.
struct Reading {
  int64_t steps = 0;
  int64_t rows = 0;
  int64_t step_ns = 0;
  int64_t head_ns = 0;
  int64_t tail_ns = 0;
  int threads = 0;
  std::vector<PhaseRow> phases;
  std::vector<WorkerRow> parts;  // (phases, threads)
  std::vector<std::vector<EventRow>> events;
};

Reading read(const Program& program, const Profile& profile) {
  const TickScale scale = profile.scale();
  Reading out;
  out.steps = profile.steps;
  out.rows = profile.rows;
  out.step_ns = scale.span(profile.step);
  out.head_ns = scale.span(profile.head);
  out.tail_ns = scale.span(profile.tail);
  out.threads = profile.threads();
  int64_t last = -1;  // slots ascend, except those of ops that share an earlier op's totals
  for (int op = 0; op < program.op_count(); ++op) {
    const int kernels = static_cast<int>(program.op(op).bindings.size());
    for (int index = 0; index < kernels * kPhases; ++index) {
      const int kernel = index / kPhases;
      const int phase = index % kPhases;
      const int64_t slot = profile.slot(op, kernel, phase);
      PhaseRow row{op, kernel, phase, 0, 0, 0, 0, 0, 0};
      for (int w = 0; w < out.threads; ++w) {
        const PhaseTotals& t = profile.totals(w, slot);
        row.calls += t.calls;
        row.rows += t.rows;
        row.tiles += t.tiles;
        row.wall_ns += scale.span(t.wall);
        row.macs += t.macs;
        row.bytes += t.bytes;
      }
      if (row.calls == 0 || slot <= last) continue;
      last = slot;
      out.phases.push_back(row);
      for (int w = 0; w < out.threads; ++w) {
        const PhaseTotals& t = profile.totals(w, slot);
        out.parts.push_back({scale.span(t.busy), scale.span(t.late), t.own_tiles});
      }
    }
  }
  for (int w = 0; w < out.threads; ++w) {
    auto& rows = out.events.emplace_back();
    for (const Event& e : profile.events(w)) {
      rows.push_back({scale.at(e.begin), scale.at(e.end), e.step, e.op, e.kernel, e.phase, e.rows, e.tiles});
    }
  }
  return out;
}

// A job of empty phases, which measures the barrier.
class Rounds final : public Job {
 public:
  explicit Rounds(int64_t rounds) : begins_(static_cast<size_t>(rounds) + 1) {}

  Next advance(int) override {
    begins_[at_] = std::chrono::steady_clock::now();
    return ++at_ == begins_.size() ? Next::end : Next::everyone;
  }
  void work(int) override {}

  std::vector<int64_t> times() const {
    std::vector<int64_t> out;
    for (size_t i = 1; i < begins_.size(); ++i) {
      out.push_back(std::chrono::duration_cast<std::chrono::nanoseconds>(begins_[i] - begins_[i - 1]).count());
    }
    return out;
  }

 private:
  std::vector<std::chrono::steady_clock::time_point> begins_;
  size_t at_ = 0;
};

template <class T>
py::array_t<T> array(const std::vector<T>& values) {
  return py::array_t<T>(static_cast<py::ssize_t>(values.size()), values.data());
}

// Registers the structs with NumPy at the first reading, because importing this module should not import NumPy.
void name_fields() {
  PYBIND11_CONSTINIT static py::gil_safe_call_once_and_store<bool> done;
  done.call_once_and_store_result([] {
    PYBIND11_NUMPY_DTYPE(PhaseRow, op, kernel, phase, calls, rows, tiles, wall_ns, macs, bytes);
    PYBIND11_NUMPY_DTYPE(WorkerRow, busy_ns, late_ns, tiles);
    PYBIND11_NUMPY_DTYPE(EventRow, begin_ns, end_ns, step, op, kernel, phase, rows, tiles);
    return true;
  });
}

}  // namespace

py::object profile_read(const Program& program) {
  name_fields();
  Reading reading;
  {
    const py::gil_scoped_release release;  // a step in flight on another thread may need the GIL to end
    program.read_profile([&](const Profile& profile) { reading = read(program, profile); });
  }
  py::list events;
  for (const auto& worker : reading.events) events.append(array(worker));
  const auto phases = static_cast<py::ssize_t>(reading.phases.size());
  const auto workers = array(reading.parts).reshape({phases, static_cast<py::ssize_t>(reading.threads)});
  return records::profile_reading(reading.steps, reading.rows, reading.step_ns, reading.head_ns, reading.tail_ns,
                                  array(reading.phases), workers, events);
}

py::array_t<int64_t> barrier_times(Pool& pool, int64_t rounds) {
  if (rounds < 1 || rounds > 1 << 20) fail(kBad, "rounds is 1 to ", 1 << 20, ", not ", rounds);
  Rounds job(rounds);
  {
    const py::gil_scoped_release release;
    pool.run(pool.lock(), job);
  }
  return array(job.times());
}

py::list describe_ops(const Program& program) {
  py::list out;
  for (int64_t index = 0; index < program.op_count(); ++index) {
    const Op& op = program.op(index);
    py::list kernels;
    for (const Binding& binding : op.bindings)
      kernels.append(py::make_tuple(binding.rows, binding.kernel->full_name()));
    std::vector<std::string> steps;
    for (const infeng_epilogue* step : op.list) steps.push_back(name_of(*step));
    out.append(records::op_info(name_of(Vocabulary::op, op.problem.op), steps, kernels));
  }
  return out;
}

void bind_profile(py::module_& m) {
  m.def("barrier_times", &barrier_times, "pool"_a, "rounds"_a,
        "Return (rounds,) int64: nanoseconds that phases without work take, one after the other.");
}

}  // namespace infeng
