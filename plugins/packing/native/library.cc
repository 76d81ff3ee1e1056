#include "library.h"

#include <infeng/extension/error.h>

namespace infeng {

SourcePacking::SourcePacking(const infeng_format& format, const infeng_source& source)
    : format_(format), source_(source) {
  if (format_.pack == nullptr) fail("unimplemented", "weight format ", format_.name, ": its library cannot pack");
  if (format_.begin == nullptr) return;
  char message[kMostMessage] = {};
  infeng_worker worker{sizeof worker, 0, 1, sizeof message, nullptr, nullptr, message, nullptr};
  require("", format_.begin(&source_, &state_, &worker), message);
}

SourcePacking::~SourcePacking() {
  if (format_.end != nullptr) format_.end(state_);
}

void SourcePacking::pack(int64_t row, uint8_t* panel) const {
  char message[kMostMessage] = {};
  infeng_worker worker{sizeof worker, 0, 1, sizeof message, nullptr, nullptr, message, nullptr};
  const infeng_status status = format_.pack(&source_, state_, row, panel, &worker);
  if (status != INFENG_OK) require("row " + std::to_string(row) + ": ", status, message);
}

void SourcePacking::require(const std::string& where, infeng_status status, char* message) const {
  if (status == INFENG_OK) return;
  message[kMostMessage - 1] = '\0';
  fail(status_code(status), where, "weight format ", format_.name, ": ", message);
}

}  // namespace infeng
