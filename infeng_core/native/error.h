// Failures below Python: a short code that callers may test and a text that people read.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>

namespace infeng {

class Error : public std::runtime_error {
 public:
  Error(std::string code, const std::string& text) : std::runtime_error(text), code_(std::move(code)) {}
  const std::string& code() const { return code_; }

 private:
  std::string code_;
};

// Throws an Error whose text is all parts written one after the other.
template <class... Parts>
[[noreturn]] void fail(const char* code, const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  throw Error(code, text.str());
}

}  // namespace infeng
