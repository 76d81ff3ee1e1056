// SPDX-License-Identifier: Apache-2.0
#include "vendor.h"

#include <dlfcn.h>
#include <stdlib.h>

#include <string>

namespace infeng::onednn {
namespace {

// The wheel of oneDNN puts its library into <prefix>/lib, and ours lies in
// <prefix>/lib/pythonX.Y/site-packages/<package>.
void* open_beside_us() {
  Dl_info ours;
  if (dladdr(reinterpret_cast<const void*>(&open_beside_us), &ours) == 0) return nullptr;
  std::string path = ours.dli_fname;
  for (int level = 0; level < 4; ++level) {
    const size_t slash = path.rfind('/');
    if (slash == std::string::npos) return nullptr;
    path.resize(slash);
  }
  return dlopen((path + "/libdnnl.so.3").c_str(), RTLD_NOW | RTLD_LOCAL);
}

template <class Function>
bool find(void* library, const char* name, Function& out) {
  out = reinterpret_cast<Function>(dlsym(library, name));
  return out != nullptr;
}

const Vendor* opened() {
  // A value that the user chose stays.
  setenv("OMP_WAIT_POLICY", "passive", 0);
  void* library = open_beside_us();
  if (library == nullptr) library = dlopen("libdnnl.so.3", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return nullptr;
  static Vendor vendor;
#define INFENG_ONEDNN_FIND(name) \
  if (!find(library, #name, vendor.name)) return nullptr;
  INFENG_ONEDNN_FUNCTIONS(INFENG_ONEDNN_FIND)
#undef INFENG_ONEDNN_FIND
  const bool has_openmp = find(library, "omp_set_num_threads", vendor.set_threads) &&
                          find(library, "omp_get_thread_num", vendor.thread) &&
                          find(library, "GOMP_parallel", vendor.parallel);
  return has_openmp ? &vendor : nullptr;
}

}  // namespace

const Vendor* vendor() {
  static const Vendor* const vendor = opened();
  return vendor;
}

}  // namespace infeng::onednn
