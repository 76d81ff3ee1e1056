#include "weights/weight.h"

#include <utility>

#include "error.h"
#include "library/names.h"
#include "weights/arena.h"
#include "weights/formats.h"

namespace infeng {
namespace {

constexpr int64_t kLargestSide = int64_t{1} << 31;

int64_t foreign_bytes(const infeng_format& format, int64_t k) {
  const int64_t bytes = format.panel_bytes(k);
  if (bytes <= 0 || bytes % kLine != 0) {
    fail("bad_format", "weight format ", format.name, ": a panel of ", k, " inputs would have ", bytes, " bytes");
  }
  return bytes;
}

}  // namespace

int64_t panel_bytes_of(uint32_t format, int64_t k) {
  if (k < 1 || k > kLargestSide) fail("invalid_argument", "a weight with ", k, " inputs is not possible");
  const int64_t padded = round_up(k, kGroup);
  switch (format) {
    case INFENG_WEIGHT_F32:
      return padded * kLine;
    case INFENG_WEIGHT_BF16:
      return padded / 2 * kLine;
    case INFENG_WEIGHT_INT8_ROW:
      return (1 + padded / 4) * kLine;
    case INFENG_WEIGHT_INT4_G64:
      return (round_up(padded, 128) / 128 + padded / 8) * kLine;
    case INFENG_WEIGHT_INT4_G32:
      return padded / 64 * 9 * kLine;
    default:
      if (const infeng_format* foreign = foreign_format(format)) return foreign_bytes(*foreign, padded);
      fail("unsupported", "weight format ", name_of(Vocabulary::weight, format), " is reserved, not implemented");
  }
}

uint32_t activation_of(uint32_t format) {
  if (const infeng_format* foreign = foreign_format(format)) return foreign->act_format;
  return format == INFENG_WEIGHT_F32 || format == INFENG_WEIGHT_BF16 ? INFENG_ACT_F32 : INFENG_ACT_INT8_G64;
}

std::shared_ptr<const Weight> make_weight(uint32_t format, int64_t n, int64_t k, int64_t panels, int64_t panel_bytes,
                                          const void* data, int64_t available, std::shared_ptr<const void> owner) {
  const int64_t expected = panel_bytes_of(format, k);
  const std::string name = name_of(Vocabulary::weight, format);
  if (n < 1 || n > kLargestSide) fail("invalid_argument", "a weight with ", n, " outputs is not possible");
  if (panels > kLargestSide || panels * kPanel < n) {
    fail("invalid_argument", panels, " panels of 16 do not hold ", n, " outputs");
  }
  if (panel_bytes != expected) {
    fail("invalid_argument", "a panel of ", k, " inputs in ", name, " has ", expected, " bytes, not ", panel_bytes);
  }
  if (panels > available / panel_bytes) {
    fail("invalid_argument", panels, " panels of ", panel_bytes, " bytes do not fit in the ", available,
         " bytes from the offset on");
  }
  if (reinterpret_cast<uintptr_t>(data) % kLine != 0) {
    fail("invalid_argument", "the weight's data is not on a 64-byte boundary; put it into an Arena");
  }
  auto weight = std::make_shared<Weight>();
  weight->abi = {sizeof(infeng_weight), format, 0, n, k, panels, panel_bytes, data, foreign_format(format)};
  weight->owner = std::move(owner);
  return weight;
}

}  // namespace infeng
