// The Python face of the native core: one bind function per file of this folder.
#include <pybind11/pybind11.h>

PYBIND11_MODULE(_native, m) { m.doc() = "INF-ENG's native core."; }
