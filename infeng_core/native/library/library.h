// Kernel libraries: opened once, checked field by field, never unloaded.
#pragma once

#include <infeng/abi.h>

#include <memory>
#include <string>
#include <vector>

namespace infeng {

class Device;
class Library;

// A kernel of an opened library. Fields of a newer ABI minor than the library's are NULL.
struct Kernel {
  const Library* library = nullptr;  // lives as long as the process
  infeng_kernel abi{};
  std::string name;
  std::vector<std::string> features;
  float bound = 0;  // the most error of an approximate kernel's results, a fraction of the largest; 0 of an exact one

  std::string full_name() const;  // "library/kernel"
  // Whether it handles all needs of the problem and its own accepts() agrees.
  bool accepts(const infeng_problem& problem) const;
  // Throws Error "bad_workspace" for impossible sizes.
  infeng_workspace workspace(const infeng_problem& problem) const;
  // Creates the kernel's state for an op with this problem; NULL if the kernel has no state. Throws Error.
  // `weight`: in the kernel's layout; NULL for an op without one weight of its own.
  std::shared_ptr<void> instance(const infeng_problem& problem, const infeng_weight* weight) const;
};

class Library {
 public:
  std::string name;
  std::string version;
  std::string path;
  int abi_major = 0;
  int abi_minor = 0;
  infeng_status (*thread_enter)() = nullptr;
  void (*thread_exit)() = nullptr;
  std::vector<std::shared_ptr<const Kernel>> kernels;
  std::vector<std::string> formats;  // names of the weight formats that it lists
  std::vector<std::string> ops;      // names of the ops that it describes
  std::vector<std::string> faults;   // what it describes wrongly: "op clip: it has 0 operands, possible are 1 to 16"
  std::vector<std::string> unknown;  // what it lists and this core does not know: "op 17 of kernel layernorm"
  std::shared_ptr<Device> device;    // on which its kernels compute; NULL: the host
};

// Opens `path` and reads its description. `features`: the CPU features that it may use, comma separated. The same file
// and features return the same object. Throws Error with one of the codes not_found, bad_file, truncated, wrong_arch,
// dlopen_failed, missing_symbol, entry_threw, entry_failed, abi_major, abi_minor, numerics, bad_struct, bad_extension,
// bad_format, null_function.
std::shared_ptr<const Library> open_library(const std::string& path, const std::string& features);

// Throws if the file is not a complete shared library: the dynamic loader would map a truncated one and die with
// SIGBUS.
void check_object_file(const std::string& path);

// Calls each library's thread_enter once per thread, and its thread_exit when the thread ends.
infeng_status enter_thread(const std::vector<const Library*>& libraries, const Library** culprit);

}  // namespace infeng
