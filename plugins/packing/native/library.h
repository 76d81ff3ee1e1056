// Packing by the functions of a weight format that a library brought.
#pragma once

#include <infeng/abi.h>

#include <cstdint>
#include <string>

namespace infeng {

// Packs the panels of one source. Functions throw Error with the library's status and message. The format lives longer.
class SourcePacking {
 public:
  SourcePacking(const infeng_format& format, const infeng_source& source);
  SourcePacking(const SourcePacking&) = delete;
  SourcePacking& operator=(const SourcePacking&) = delete;
  ~SourcePacking();

  void pack(int64_t row, uint8_t* panel) const;  // may run on several threads at once

 private:
  static constexpr int kMostMessage = 200;
  void require(const std::string& where, infeng_status status, char* message) const;

  const infeng_format& format_;
  infeng_source source_;
  void* state_ = nullptr;
};

}  // namespace infeng
