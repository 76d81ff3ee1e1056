#include "weights/panels.h"

#include "weights/formats.h"

namespace infeng {

void unpack_group(uint32_t format, const uint8_t* panel, int64_t g, Group x) {
  const infeng_format& known = format_of(format).abi;
  int8_t q[kGroup][kLanes];
  float scale[2][kLanes];
  known.unpack(panel, g, x, q, scale);
  if (known.group == 0) return;
  for (int k = 0; k < kGroup; k++) {
    for (int n = 0; n < kLanes; n++) x[k][n] = float(q[k][n]) * scale[k / int(known.group)][n];
  }
}

}  // namespace infeng
