// The panels of a buffer that Python gives.
// SPDX-License-Identifier: Apache-2.0
#ifndef INFENG_EXTENSION_PANEL_BUFFER_H
#define INFENG_EXTENSION_PANEL_BUFFER_H

#include <infeng/extension/error.h>

#include <cstdint>

namespace infeng {

// Panel `first` and every `step`-th after it in a buffer, from `offset` on, `bytes` bytes each. `info` has `ptr`,
// `size` and `itemsize`, as pybind11's buffer_info does.
class Panels {
 public:
  template <class Info>
  Panels(const Info& info, int64_t offset, int64_t first, int64_t step, int64_t count, int64_t bytes)
      : first_(first), step_(step), bytes_(bytes) {
    const int64_t size = int64_t(info.size) * info.itemsize;
    if (offset < 0 || first < 0 || step < 1 || count < 0 || offset > size) {
      fail(kBad, "offset, first panel and step must lie inside the buffer");
    }
    const int64_t room = (size - offset) / bytes;  // whole panels
    if (count > 0 && (first >= room || (count - 1) > (room - 1 - first) / step)) {
      fail(kBad, "the buffer holds ", room, " panels, too few");
    }
    base_ = static_cast<uint8_t*>(info.ptr) + offset;
  }

  uint8_t* at(int64_t p) const { return base_ + (first_ + p * step_) * bytes_; }

 private:
  uint8_t* base_;
  int64_t first_, step_, bytes_;
};

}  // namespace infeng

#endif  // INFENG_EXTENSION_PANEL_BUFFER_H
