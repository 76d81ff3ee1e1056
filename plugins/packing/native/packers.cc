#include "packers.h"

#include <infeng/extension/error.h>

namespace infeng {
namespace {

constexpr int64_t kLargestSide = int64_t{1} << 31;

constexpr Packer kBrought{INFENG_WEIGHT_FOREIGN, nullptr};

}  // namespace

const Packer& packer_of(const infeng_format& format) {
  for (const std::span<const Packer> family : {float_packers(), integer_packers(), unit_packers(), minima_packers()}) {
    for (const Packer& packer : family) {
      if (packer.number == format.number) return packer;
    }
  }
  return kBrought;
}

std::optional<CodeGrid> grid_of(const infeng_format& format) {
  if (const Packer& packer = packer_of(format); packer.write != nullptr) return packer.grid;
  if (format.write == nullptr || format.group == 0 || format.superblock != 0 || format.has_minima != 0) return {};
  const int64_t group = format.group == INFENG_GROUP_ROW ? 0 : int64_t(format.group);
  return CodeGrid{group, format.low, format.high, format.scale_type == INFENG_F16};
}

int64_t panel_bytes_of(const infeng_format& format, int64_t k) {
  if (k < 1 || k > kLargestSide) fail(kBad, "a weight with ", k, " inputs is not possible");
  const int64_t padded = (k + kGroup - 1) / kGroup * kGroup, bytes = format.panel_bytes(padded);
  if (bytes <= 0 || bytes % kLine != 0) {
    fail("bad_format", "weight format ", format.name, ": a panel of ", padded, " inputs would have ", bytes, " bytes");
  }
  return bytes;
}

}  // namespace infeng
