#include "weights/weight.h"

#include <infeng/extension/error.h>

#include <utility>

#include "weights/arena.h"
#include "weights/formats.h"

namespace infeng {
namespace {

constexpr int64_t kLargestSide = int64_t{1} << 31;

}  // namespace

int64_t panel_bytes_of(uint32_t format, int64_t k) {
  if (k < 1 || k > kLargestSide) fail(kBad, "a weight with ", k, " inputs is not possible");
  const infeng_format& known = format_of(format).abi;
  const int64_t padded = round_up(k, kGroup), bytes = known.panel_bytes(padded);
  if (bytes <= 0 || bytes % kLine != 0) {
    fail("bad_format", "weight format ", known.name, ": a panel of ", padded, " inputs would have ", bytes, " bytes");
  }
  return bytes;
}

int64_t stacked_bytes_of(uint32_t dtype, int64_t rank, int64_t k) {
  const auto panel = [dtype](int64_t inputs) {
    // 9 lines for 64 inputs: 8 of nibbles, one of the lower bits of rows in 8 bits
    if (dtype == INFENG_I8T4) return kLine + round_up(inputs, kGroup) / kGroup * 9 * kLine;
    return panel_bytes_of(adapter_format(dtype), inputs);
  };
  const int64_t whole = (rank + kPanel / 2 - 1) / kPanel, folded = round_up(rank, kPanel) / kPanel - whole;
  return whole * panel(k) + folded * panel(round_up(k, 2 * kGroup) / 2);
}

uint32_t activation_of(uint32_t format) { return format_of(format).abi.act_format; }

uint32_t activation_of(uint32_t format, int64_t group) {
  const bool reads_rows = format_of(format).sub.group != 0 || format == INFENG_WEIGHT_INT8_ROW;
  if (reads_rows && group == INFENG_GROUP_ROW) return INFENG_ACT_INT8_ROW;
  if (format_of(format).sub.group == 0 || group == kGroup) return activation_of(format);
  return group == 128 ? INFENG_ACT_INT8_G128 : INFENG_ACT_INT8_G256;
}

std::shared_ptr<const Weight> make_weight(uint32_t format, int64_t n, int64_t k, int64_t panels, int64_t panel_bytes,
                                          const void* data, int64_t available, std::shared_ptr<const void> owner) {
  const int64_t expected = panel_bytes_of(format, k);
  const infeng_format& known = format_of(format).abi;
  if (n < 1 || n > kLargestSide) fail(kBad, "a weight with ", n, " outputs is not possible");
  if (panels > kLargestSide || panels * kPanel < n) {
    fail(kBad, panels, " panels of 16 do not hold ", n, " outputs");
  }
  if (panel_bytes != expected) {
    fail(kBad, "a panel of ", k, " inputs in ", known.name, " has ", expected, " bytes, not ", panel_bytes);
  }
  if (panels > available / panel_bytes) {
    fail(kBad, panels, " panels of ", panel_bytes, " bytes do not fit in the ", available, " bytes from the offset on");
  }
  if (reinterpret_cast<uintptr_t>(data) % kLine != 0) {
    fail(kBad, "the weight's data is not on a 64-byte boundary; put it into an Arena");
  }
  auto weight = std::make_shared<Weight>();
  weight->abi = {sizeof(infeng_weight),
                 format,
                 0,
                 n,
                 k,
                 panels,
                 panel_bytes,
                 data,
                 format >= INFENG_WEIGHT_FOREIGN ? &known : nullptr};
  weight->owner = std::move(owner);
  return weight;
}

}  // namespace infeng
