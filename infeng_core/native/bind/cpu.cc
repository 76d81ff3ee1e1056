#include <pybind11/stl.h>

#include "bind/bindings.h"
#include "library/cpu.h"

namespace py = pybind11;

namespace infeng {

void bind_cpu(py::module_& m) {
  const auto quota_under = [](const std::string& root) {
    const double quota = cpu_quota(root);
    return quota > 0 ? py::object(py::float_(quota)) : py::object(py::none());
  };
  m.def(
      "cpu_quota", quota_under, py::arg("root") = "",
      "Return the CPUs' worth of time that the control group grants, or None; ``root`` stands before /proc and /sys.");
  m.def(
      "cpu_info",
      [quota_under] {
        const CpuInfo info = detect_cpu();
        py::dict out;
        out["arch"] = info.arch;
        out["vendor"] = info.vendor;
        out["model"] = info.model;
        out["features"] = info.features;
        out["masked"] = info.masked;
        out["cores"] = allowed_cpus().size();
        out["quota"] = quota_under("");
        out["caches"] = cache_sizes();
        return out;
      },
      "Describe the processor: arch, vendor, model, usable features, masked features with their reasons, the size of "
      "the "
      "affinity mask, the control group's quota in CPUs (None: unlimited) and data cache sizes in bytes.");
}

}  // namespace infeng
