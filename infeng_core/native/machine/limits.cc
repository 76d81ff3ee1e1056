// The limits of this process: affinity mask, control group quota, cache sizes.
#include <algorithm>
#include <fstream>
#include <sstream>
#include <thread>

#include "machine/cpu.h"

#if defined(__linux__)
#include <sched.h>
#endif

namespace infeng {
namespace {

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// The smallest of `limit(directory)` over a control group and all its ancestors; 0 means no limit.
template <class Limit>
double smallest(const std::string& root, std::string path, Limit limit) {
  double least = 0;
  for (;;) {
    const double here = limit(root + path);
    if (here > 0 && (least == 0 || here < least)) least = here;
    const size_t slash = path.find_last_of('/');
    if (path.empty() || slash == std::string::npos) return least;
    path.resize(slash);
  }
}

// cpu.max holds "quota period" in microseconds, or "max period".
double quota_v2(const std::string& directory) {
  std::istringstream line(first_line(directory + "/cpu.max"));
  std::string quota;
  double period = 0;
  if (!(line >> quota >> period) || quota == "max" || period <= 0) return 0;
  return std::strtod(quota.c_str(), nullptr) / period;
}

double quota_v1(const std::string& directory) {
  const double quota = std::strtod(first_line(directory + "/cpu.cfs_quota_us").c_str(), nullptr);
  const double period = std::strtod(first_line(directory + "/cpu.cfs_period_us").c_str(), nullptr);
  return quota > 0 && period > 0 ? quota / period : 0;
}

}  // namespace

double cpu_quota(const std::string& root) {
  double least = 0;
  const auto take = [&least](double quota) {
    if (quota > 0 && (least == 0 || quota < least)) least = quota;
  };
  const std::string mounts = root + "/sys/fs/cgroup";
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // "hierarchy:controllers:path"
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    std::string path = line.substr(second + 1);
    if (path == "/") path.clear();
    if (controllers == ",,") {
      take(smallest(mounts, path, quota_v2));
    } else if (controllers.find(",cpu,") != std::string::npos) {
      take(smallest(mounts + "/cpu", path, quota_v1));
      take(smallest(mounts + "/cpu,cpuacct", path, quota_v1));
    }
  }
  return least;
}

std::vector<int> allowed_cpus() {
  std::vector<int> cpus;
#if defined(__linux__)
  for (int size = 1024; size <= 1 << 20; size *= 4) {  // a set that is too small fails with EINVAL
    cpu_set_t* set = CPU_ALLOC(size);
    const size_t bytes = CPU_ALLOC_SIZE(size);
    CPU_ZERO_S(bytes, set);
    const bool ok = sched_getaffinity(0, bytes, set) == 0;
    for (int cpu = 0; ok && cpu < size; ++cpu) {
      if (CPU_ISSET_S(cpu, bytes, set)) cpus.push_back(cpu);
    }
    CPU_FREE(set);
    if (ok) break;
  }
  // A core's second hardware thread adds little, so it comes after every core's first.
  const auto is_sibling = [](int cpu) {
    const std::string list =
        first_line("/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/thread_siblings_list");
    return !list.empty() && std::strtol(list.c_str(), nullptr, 10) != cpu;
  };
  std::stable_partition(cpus.begin(), cpus.end(), [&](int cpu) { return !is_sibling(cpu); });
#endif
  if (cpus.empty()) {
    const int count = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
    for (int cpu = 0; cpu < count; ++cpu) cpus.push_back(cpu);
  }
  return cpus;
}

std::map<std::string, long> cache_sizes() {
  std::map<std::string, long> sizes;
  for (int index = 0; index < 8; ++index) {
    const std::string directory = "/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index);
    const std::string level = first_line(directory + "/level");
    const std::string type = first_line(directory + "/type");
    const std::string size = first_line(directory + "/size");
    if (level.empty() || size.empty() || type == "Instruction") continue;
    char* unit = nullptr;
    long bytes = std::strtol(size.c_str(), &unit, 10);
    if (*unit == 'K') bytes *= 1024;
    if (*unit == 'M') bytes *= 1024 * 1024;
    sizes["l" + level + (type == "Data" ? "d" : "")] = bytes;
  }
  return sizes;
}

}  // namespace infeng
