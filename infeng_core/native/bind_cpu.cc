#include <pybind11/stl.h>

#include "bindings.h"
#include "cpu.h"

namespace py = pybind11;

namespace infeng {

void bind_cpu(py::module_& m) {
  m.def(
      "cpu_info",
      [] {
        const CpuInfo info = detect_cpu();
        const double quota = cpu_quota();
        py::dict out;
        out["arch"] = info.arch;
        out["vendor"] = info.vendor;
        out["model"] = info.model;
        out["features"] = info.features;
        out["masked"] = info.masked;
        out["cores"] = allowed_cpus().size();
        out["quota"] = quota > 0 ? py::object(py::float_(quota)) : py::object(py::none());
        out["caches"] = cache_sizes();
        return out;
      },
      "Describe the processor: arch, vendor, model, usable features, masked features with their reasons, the size of "
      "the "
      "affinity mask, the control group's quota in CPUs (None: unlimited) and data cache sizes in bytes.");
}

}  // namespace infeng
