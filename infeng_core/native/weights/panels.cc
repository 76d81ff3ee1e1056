#include "weights/panels.h"

#include <cstring>
#include <numeric>

#include "weights/formats.h"

namespace infeng {

void unpack_group(uint32_t format, const uint8_t* panel, int64_t g, Group x) {
  const infeng_format& known = format_of(format).abi;
  alignas(64) infeng_block block;
  block.struct_size = sizeof block;
  known.unpack(panel, g, &block);
  if (known.group == 0) {
    std::memcpy(x, block.w, sizeof block.w);
    return;
  }
  const int step = int(std::gcd(int64_t(known.group), kGroup));
  for (int k = 0; k < kGroup; k++) {
    const int s = k / step;
    for (int n = 0; n < kLanes; n++) {
      if (known.superblock == 0) {
        x[k][n] = float(block.q[k][n]) * block.scale[s][n];
        if (known.has_minima) x[k][n] -= block.minimum[s][n];
      } else {
        x[k][n] = block.scale[0][n] * float(block.sub_scale[s][n] * block.q[k][n]);
        if (known.has_minima) x[k][n] -= block.minimum[0][n] * float(block.sub_minimum[s][n]);
      }
    }
  }
}

}  // namespace infeng
