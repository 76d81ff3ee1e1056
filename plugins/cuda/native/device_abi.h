// What a device brings to the description of its library.
#pragma once

#include <infeng/abi.h>

namespace infeng_cuda {

extern const infeng_device kDevice;
extern const char* const kLibrary;  // its name

}  // namespace infeng_cuda
