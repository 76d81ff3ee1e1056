#include <pybind11/stl.h>

#include "bind/bindings.h"
#include "bind/records.h"
#include "machine/cpu.h"

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
        return records::cpu_info(info.arch, info.vendor, info.model, info.features, info.masked, allowed_cpus().size(),
                                 quota_under(""), cache_sizes());
      },
      "Describe the processor, as CpuInfo.");
}

}  // namespace infeng
