// What this processor, its operating system and this process's limits allow.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace infeng {

struct CpuInfo {
  std::string arch;                           // "x86_64", "aarch64" or what the compiler says
  std::string vendor;                         // "GenuineIntel"
  std::string model;                          // "Intel(R) Xeon(R) Processor"
  std::vector<std::string> features;          // usable ones, in the order in which they are checked
  std::map<std::string, std::string> masked;  // offered by the processor but not usable -> why
};

CpuInfo detect_cpu();

// CPUs this thread may run on, one hardware thread of every core before second ones. Never empty.
std::vector<int> allowed_cpus();

// CPUs' worth of time that the control group grants (v1 or v2, the smallest of all ancestors); 0 when unlimited. `root`
// stands before /proc and /sys.
double cpu_quota(const std::string& root = "");

// {"l1d", "l2", "l3"} -> bytes, of CPU 0; without what the system does not tell.
std::map<std::string, long> cache_sizes();

}  // namespace infeng
