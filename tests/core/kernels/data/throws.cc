// A library whose entry point lets a C++ exception out.
#include <infeng/abi.h>

#include <stdexcept>

infeng_status infeng_library(const infeng_host*, infeng_library_desc*) { throw std::runtime_error("not today"); }
