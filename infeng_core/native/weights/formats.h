// Descriptors of the weight formats: the core's own and those that libraries register.
#pragma once

#include <infeng/abi.h>
#include <infeng/extension/panel.h>

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace infeng {

// A format with integer sub-scales, w = d s (u - z): u and z in [0, most_unit], s in [1, most_scale].
struct SubScaling {
  int64_t group = 0;  // inputs that share a sub-scale; 0: the format has none
  int most_scale = 0;
  int most_unit = 0;
};

// A format with minima, w = d s u - e t: units in [0, 15], d and e rounded to fp16.
struct MinimaScaling {
  int64_t group = 0;       // inputs that share s and t; 0: the format has none
  int64_t superblock = 0;  // inputs that share d and e
};

// The ABI's descriptor of a weight format, and what only the core uses.
struct WeightFormat {
  infeng_format abi;  // of the core's own formats `panel_bytes` and `unpack` are its only functions
  CodeGrid grid;
  // Checks the panel of rows [row, row + 16) in a file. Throws Error "not_finite" or "out_of_range" for contents that
  // no packing rule writes and for which kernels differ. NULL for formats whose layout only their library knows.
  void (*check)(const uint8_t* panel, int64_t k, int64_t row) = nullptr;
  SubScaling sub = {};
  MinimaScaling minima = {};

  // Whether its rows are codes of `grid`, with a scale for each group, which others than its library can write.
  bool has_codes() const {
    const bool is_written = abi.write != nullptr && abi.superblock == 0 && abi.has_minima == 0;
    return abi.group != 0 && sub.group == 0 && (check != nullptr || is_written);
  }
};

template <class Layout>
void unpack_by(const void* panel, int64_t g, infeng_block* out) {
  Layout::read(panel, g, out->w, out->q, out->scale);
}

// The descriptor of one of the core's own formats.
template <class Layout>
constexpr infeng_format described(uint32_t number, const char* name, uint32_t act_format, uint32_t group) {
  infeng_format abi{};
  abi.struct_size = sizeof abi;
  abi.number = number;
  abi.name = name;
  abi.act_format = act_format;
  abi.group = group;
  abi.panel_bytes = Layout::bytes;
  abi.unpack = unpack_by<Layout>;
  return abi;
}

// The core's own formats, one file for each family.
std::span<const WeightFormat> float_formats();
std::span<const WeightFormat> integer_formats();
std::span<const WeightFormat> sub_scaled_formats();
std::span<const WeightFormat> affine_formats();

// NULL for an unknown number or name. The result lives as long as the process.
const WeightFormat* find_format(uint32_t number);
const WeightFormat* find_format(std::string_view name);

// Throws Error "unsupported" for an unknown number and for a reserved format.
const WeightFormat& format_of(uint32_t number);

// The core's own formats by number, reserved ones included, then registered ones in order of registration.
std::vector<const WeightFormat*> all_formats();

// Registers the format of a library and sets its number; formats of the same name and geometry are one format. Throws
// Error "bad_format", whose text begins with `path`.
void add_format(const std::string& path, infeng_format& format);

}  // namespace infeng
