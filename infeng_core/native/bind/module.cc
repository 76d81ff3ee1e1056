// The Python module of the native core; each file of this folder has one bind function.
#include "bind/bindings.h"

PYBIND11_MODULE(_native, m) {
  m.doc() = "INF-ENG's native core.";
  infeng::bind_error(m);
  infeng::bind_records(m);
  infeng::bind_cpu(m);
  infeng::bind_library(m);
  infeng::bind_memory(m);
  infeng::bind_profile(m);
  infeng::bind_adapter(m);
  infeng::bind_program(m);
  infeng::bind_formats(m);
  infeng::bind_rope(m);
  infeng::bind_sampling(m);
}
