// The weight formats: what is known of each stands in one descriptor, the core's own and those that libraries bring.
#pragma once

#include <infeng/abi.h>

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "weights/source.h"

namespace infeng {

// A format as the ABI describes one, and what the core alone needs of it.
struct WeightFormat {
  // Of the core's own `pack` is NULL: they are packed from a source in place. A reserved one has no functions.
  infeng_format abi;
  // Smallest and largest integer of a weight; 0, 0 for floats.
  int low;
  int high;
  // Quantizes and lays out rows [row, row + 16) of the source as one panel. Throws Error "not_finite", "out_of_range".
  void (*pack)(const WeightFormat& format, const Source& source, int64_t row, uint8_t* panel);

  bool is_reserved() const { return abi.panel_bytes == nullptr; }
};

// The core's own, one file for each family; formats.cc lists the families.
std::span<const WeightFormat> float_formats();
std::span<const WeightFormat> integer_formats();

// NULL for a number or a name that nobody has. What is found lives as long as the process.
const WeightFormat* find_format(uint32_t number);
const WeightFormat* find_format(std::string_view name);

// Throws Error "unsupported" for a number that nobody has, and for a reserved format.
const WeightFormat& format_of(uint32_t number);

// The core's own by number, those that it reserves among them, then the brought ones in the order in which they came.
std::vector<const WeightFormat*> all_formats();

// Registers a format that a library brings and tells it its number. One of the same name and geometry is the same
// format. Throws Error "bad_format" beginning with `path`.
void add_format(const std::string& path, infeng_format& format);

}  // namespace infeng
