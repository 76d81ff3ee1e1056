#include "weights/formats.h"

#include <infeng/extension/error.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <mutex>
#include <tuple>

namespace infeng {
namespace {

constexpr const char* kBadFormat = "bad_format";
constexpr uint32_t kMostBytes = 4096;                 // of a descriptor
constexpr int64_t kSamples[] = {64, 128, 192, 4096};  // values of k at which two geometries are compared

// The core's own formats, sorted by number.
const std::vector<const WeightFormat*>& own_formats() {
  static const auto& formats = *[] {
    auto* all = new std::vector<const WeightFormat*>;
    for (const std::span<const WeightFormat> family :
         {float_formats(), integer_formats(), sub_scaled_formats(), affine_formats()}) {
      for (const WeightFormat& format : family) all->push_back(&format);
    }
    std::ranges::sort(*all, {}, [](const WeightFormat* format) { return format->abi.number; });
    return all;
  }();
  return formats;
}

// The formats that libraries registered. A deque, because callers keep pointers to its elements.
struct Brought {
  std::mutex mutex;
  std::deque<WeightFormat> formats;
};

Brought& brought() {
  static auto& brought = *new Brought;
  return brought;
}

bool is_same(const infeng_format& a, const infeng_format& b) {
  const auto bytes_equal = [&](int64_t k) { return a.panel_bytes(k) == b.panel_bytes(k); };
  const auto geometry = [](const infeng_format& f) {
    return std::tie(f.act_format, f.group, f.superblock, f.has_minima, f.low, f.high, f.scale_type);
  };
  return geometry(a) == geometry(b) && std::all_of(std::begin(kSamples), std::end(kSamples), bytes_equal);
}

bool is_row(uint32_t inputs) { return inputs == INFENG_GROUP_ROW; }

void check_integers(const std::string& where, const infeng_format& format) {
  if (format.act_format != INFENG_ACT_INT8_G64 || format.group == 0 || format.group % 16 != 0 ||
      format.group > INFENG_GROUP_ROW) {
    fail(kBadFormat, where, ": reads activation ", format.act_format, " with ", format.group,
         " inputs for a scale; possible are f32 with 0, int8-g64 with a multiple of 16");
  }
  const bool fits = is_row(format.superblock) || (format.superblock % 64 == 0 && format.superblock % format.group == 0);
  if (!fits || format.superblock > INFENG_GROUP_ROW || (is_row(format.group) && format.superblock != 0)) {
    fail(kBadFormat, where, ": has a superblock of ", format.superblock, " inputs over groups of ", format.group,
         "; it is a multiple of both that and 64");
  }
  if (format.low < INT8_MIN || format.high > INT8_MAX || format.low >= format.high || format.has_minima > 1) {
    fail(kBadFormat, where, ": has integers from ", format.low, " to ", format.high, " and has_minima ",
         format.has_minima, "; an integer fits in 8 bits, has_minima is 0 or 1");
  }
  if (format.scale_type != INFENG_F32 && format.scale_type != INFENG_F16) {
    fail(kBadFormat, where, ": has scales of type ", format.scale_type, "; possible are f32 and f16");
  }
}

void check(const std::string& where, const infeng_format& format) {
  if (format.panel_bytes == nullptr || format.unpack == nullptr) {
    fail(kBadFormat, where, ": has no function `", format.panel_bytes == nullptr ? "panel_bytes" : "unpack", "`");
  }
  if ((format.begin == nullptr) != (format.end == nullptr)) {
    fail(kBadFormat, where, ": has one of the functions `begin` and `end`, not both");
  }
  const bool has_floats = format.act_format == INFENG_ACT_F32 && format.group == 0 && format.superblock == 0 &&
                          format.has_minima == 0 && format.low == 0 && format.high == 0 && format.scale_type == 0;
  if (!has_floats) check_integers(where, format);
  for (const int64_t k : kSamples) {
    const int64_t bytes = format.panel_bytes(k);
    if (bytes <= 0 || bytes % 64 != 0) {
      fail(kBadFormat, where, ": a panel of ", k, " inputs would have ", bytes, " bytes, not a multiple of 64");
    }
  }
}

}  // namespace

const WeightFormat* find_format(uint32_t number) {
  for (const WeightFormat* format : own_formats()) {
    if (format->abi.number == number) return format;
  }
  Brought& all = brought();
  const std::lock_guard lock(all.mutex);
  const size_t index = number - INFENG_WEIGHT_FOREIGN;
  return number >= INFENG_WEIGHT_FOREIGN && index < all.formats.size() ? &all.formats[index] : nullptr;
}

const WeightFormat* find_format(std::string_view name) {
  const std::vector<const WeightFormat*> all = all_formats();
  const auto found = std::ranges::find(all, name, [](const WeightFormat* format) { return format->abi.name; });
  return found == all.end() ? nullptr : *found;
}

const WeightFormat& format_of(uint32_t number) {
  const WeightFormat* format = find_format(number);
  if (format == nullptr) fail("unsupported", "weight format ", number, " is unknown");
  return *format;
}

std::vector<const WeightFormat*> all_formats() {
  std::vector<const WeightFormat*> found = own_formats();
  Brought& all = brought();
  const std::lock_guard lock(all.mutex);
  for (const WeightFormat& format : all.formats) found.push_back(&format);
  return found;
}

void add_format(const std::string& path, infeng_format& format) {
  const uint32_t size = format.struct_size;
  if (size < offsetof(infeng_format, write) + sizeof format.write || size > kMostBytes || format.name == nullptr) {
    fail(kBadFormat, path, ": a weight format says that it has ", size, " bytes, or has no name");
  }
  WeightFormat known{};
  std::memcpy(&known.abi, &format, std::min<size_t>(size, sizeof known.abi));
  known.grid = {is_row(known.abi.group) ? 0 : known.abi.group, known.abi.low, known.abi.high,
                known.abi.scale_type == INFENG_F16};
  known.abi.struct_size = sizeof known.abi;
  const std::string where = path + ": weight format " + std::string(known.abi.name, strnlen(known.abi.name, 64));
  check(where, known.abi);
  const auto has_name = [&](const WeightFormat& other) { return std::strcmp(other.abi.name, known.abi.name) == 0; };
  if (std::ranges::any_of(own_formats(), [&](const WeightFormat* own) { return has_name(*own); })) {
    fail(kBadFormat, where, ": is the name of one of the core's own formats");
  }
  Brought& all = brought();
  const std::lock_guard lock(all.mutex);
  const auto other = std::ranges::find_if(all.formats, has_name);
  if (other != all.formats.end()) {
    if (!is_same(other->abi, known.abi)) {
      fail(kBadFormat, where, ": another library brought one of this name with other panels");
    }
    format.number = other->abi.number;
    return;
  }
  known.abi.number = format.number = INFENG_WEIGHT_FOREIGN + static_cast<uint32_t>(all.formats.size());
  all.formats.push_back(known);
}

}  // namespace infeng
