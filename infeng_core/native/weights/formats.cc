#include "weights/formats.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <mutex>

#include "error.h"
#include "library/names.h"

namespace infeng {
namespace {

constexpr const char* kBad = "bad_format";
constexpr int64_t kSamples[] = {64, 128, 192, 4096};  // k at which two geometries are compared

struct Registry {
  std::mutex mutex;
  std::deque<infeng_format> formats;  // their addresses are kept
};

Registry& registry() {
  static auto& registry = *new Registry;
  return registry;
}

bool is_same(const infeng_format& a, const infeng_format& b) {
  const auto bytes_equal = [&](int64_t k) { return a.panel_bytes(k) == b.panel_bytes(k); };
  return a.act_format == b.act_format && a.group == b.group &&
         std::all_of(std::begin(kSamples), std::end(kSamples), bytes_equal);
}

void check(const std::string& where, const infeng_format& format) {
  if (format.panel_bytes == nullptr || format.unpack == nullptr) {
    fail(kBad, where, ": has no function `", format.panel_bytes == nullptr ? "panel_bytes" : "unpack", "`");
  }
  const bool floats = format.act_format == INFENG_ACT_F32 && format.group == 0;
  const bool integers = format.act_format == INFENG_ACT_INT8_G64 && (format.group == 32 || format.group == 64);
  if (!floats && !integers) {
    fail(kBad, where, ": reads activation ", format.act_format, " with ", format.group,
         " inputs for a scale; possible are f32 with 0, int8-g64 with 32 or 64");
  }
  for (const int64_t k : kSamples) {
    const int64_t bytes = format.panel_bytes(k);
    if (bytes <= 0 || bytes % 64 != 0) {
      fail(kBad, where, ": a panel of ", k, " inputs would have ", bytes, " bytes, not a multiple of 64");
    }
  }
}

}  // namespace

void add_format(const std::string& path, infeng_format& format) {
  const uint32_t size = format.struct_size;
  if (size < offsetof(infeng_format, unpack) + sizeof format.unpack || size > 4096 || format.name == nullptr) {
    fail(kBad, path, ": a weight format says that it has ", size, " bytes, or has no name");
  }
  infeng_format known{};
  std::memcpy(&known, &format, std::min<size_t>(size, sizeof known));
  known.struct_size = sizeof known;
  const std::string where = path + ": weight format " + std::string(known.name, strnlen(known.name, 64));
  check(where, known);
  if (is_own_format(known.name)) fail(kBad, where, ": is the name of one of the core's own formats");
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  for (const infeng_format& other : all.formats) {
    if (std::strcmp(other.name, known.name) != 0) continue;
    if (!is_same(other, known)) fail(kBad, where, ": another library brought one of this name with other panels");
    format.number = other.number;
    return;
  }
  known.number = format.number = INFENG_WEIGHT_FOREIGN + static_cast<uint32_t>(all.formats.size());
  all.formats.push_back(known);
}

const infeng_format* foreign_format(uint32_t number) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  const size_t index = number - INFENG_WEIGHT_FOREIGN;
  return number >= INFENG_WEIGHT_FOREIGN && index < all.formats.size() ? &all.formats[index] : nullptr;
}

const infeng_format* foreign_format(std::string_view name) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  for (const infeng_format& format : all.formats) {
    if (name == format.name) return &format;
  }
  return nullptr;
}

std::vector<std::string> foreign_names() {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  std::vector<std::string> names;
  for (const infeng_format& format : all.formats) names.emplace_back(format.name);
  return names;
}

}  // namespace infeng
