// Errors of extension modules: a short code for programs and a text for people. Python gets them as NativeError.
// SPDX-License-Identifier: Apache-2.0
#ifndef INFENG_EXTENSION_ERROR_H
#define INFENG_EXTENSION_ERROR_H

#include <infeng/abi.h>

#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>

namespace infeng {

constexpr const char* kBad = "invalid_argument";  // the code of most errors

class Error : public std::runtime_error {
 public:
  Error(std::string code, const std::string& text) : std::runtime_error(text), code_(std::move(code)) {}
  const std::string& code() const { return code_; }

 private:
  std::string code_;
};

template <class... Parts>
std::string joined(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return text.str();
}

// Throws an Error whose text is `parts`, joined.
template <class... Parts>
[[noreturn]] void fail(const char* code, const Parts&... parts) {
  throw Error(code, joined(parts...));
}

// The error code of a status, such as "not_finite".
inline const char* status_code(infeng_status status) {
  switch (status) {
    case INFENG_OK:
      return "ok";
    case INFENG_UNIMPLEMENTED:
      return "unimplemented";
    case INFENG_INVALID_ARGUMENT:
      return "invalid_argument";
    case INFENG_UNSUPPORTED_ABI:
      return "unsupported_abi";
    case INFENG_OUT_OF_RANGE:
      return "out_of_range";
    case INFENG_NOT_FINITE:
      return "not_finite";
    default:
      return "internal";
  }
}

}  // namespace infeng

#endif  // INFENG_EXTENSION_ERROR_H
