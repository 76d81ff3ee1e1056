// CPU features, CPUs and caches that this process may use.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace infeng {

struct CpuInfo {
  std::string arch;                           // "x86_64", "aarch64", ...
  std::string vendor;                         // "GenuineIntel"
  std::string model;                          // "Intel(R) Xeon(R) Processor"
  std::vector<std::string> features;          // usable features, in the order of checking
  std::map<std::string, std::string> masked;  // feature that the processor has but that is not usable -> reason
};

CpuInfo detect_cpu();

// CPUs on which this thread may run: the first hardware thread of every core, then second ones. Never empty.
std::vector<int> allowed_cpus();

// CPU quota of the control group (v1 or v2, the smallest of all ancestors) in CPUs; 0 if unlimited. `root`: a prefix
// of /proc and /sys.
double cpu_quota(const std::string& root = "");

// {"l1d", "l2", "l3"} -> bytes, of CPU 0. Caches that the system does not report are missing.
std::map<std::string, long> cache_sizes();

}  // namespace infeng
