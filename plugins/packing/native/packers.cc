#include "packers.h"

#include <algorithm>
#include <vector>

#include "error.h"

namespace infeng {
namespace {

constexpr int64_t kLargestSide = int64_t{1} << 31;

// Converts up to 16 rows to f32 and packs them with the library's own function.
void pack_brought(const infeng_format& format, const Source& s, int64_t row, uint8_t* out) {
  if (format.pack == nullptr) {
    fail("unimplemented", "weight format ", format.name, ": its library cannot pack");
  }
  const int64_t rows = std::min<int64_t>(kLanes, s.n - row);
  std::vector<float> w(static_cast<size_t>(rows * s.k));
  for (int64_t column = 0; column < s.k; column += kGroup) {
    Group x;
    load_group(s, row, column, x);
    for (int64_t n = 0; n < rows; n++) {
      for (int64_t k = 0; k < std::min<int64_t>(kGroup, s.k - column); k++) w[size_t(n * s.k + column + k)] = x[k][n];
    }
  }
  char message[200] = {};
  infeng_worker worker{sizeof worker, 0, 1, sizeof message, nullptr, nullptr, message, nullptr};
  const infeng_status status = format.pack(w.data(), s.k, rows, s.k, out, &worker);
  if (status == INFENG_OK) return;
  message[sizeof message - 1] = '\0';
  fail(status_code(status), "row ", row, ": weight format ", format.name, ": ", message);
}

constexpr Packer kBrought{INFENG_WEIGHT_FOREIGN, pack_brought};

}  // namespace

const Packer& packer_of(const infeng_format& format) {
  for (const std::span<const Packer> family : {float_packers(), integer_packers(), unit_packers(), minima_packers()}) {
    for (const Packer& packer : family) {
      if (packer.number == format.number) return packer;
    }
  }
  return kBrought;
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
