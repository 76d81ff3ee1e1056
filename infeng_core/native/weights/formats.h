// The weight formats: what is known of each stands in one descriptor, the core's own and those that libraries bring.
#pragma once

#include <infeng/abi.h>

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "weights/source.h"

namespace infeng {

// 64 inputs of 16 outputs in an integer format: q[k][n], and scale[h][n] of the one or two groups among them.
using Integers = int8_t (*)[kLanes];
using Scales = float (*)[kLanes];
using ConstIntegers = const int8_t (*)[kLanes];
using ConstScales = const float (*)[kLanes];

// What integers and scales a format stores.
struct CodeGrid {
  int64_t group;  // inputs of one scale; 0: all of an output
  int low;        // smallest and largest integer; 0, 0 for floats
  int high;
  bool half;  // scales are fp16, else f32

  int64_t groups(int64_t k) const { return group == 0 ? 1 : (k + group - 1) / group; }
};

// A matrix (n, k) in units with integer sub-scales, rows contiguous: w = d[n] s[n][g] (u[n][k] - z[n][g]) for each
// group g of inputs.
struct Units {
  const int8_t* u;  // (n, k)
  const float* d;   // (n)
  const int8_t* s;  // (n, groups)
  const int8_t* z;  // (n, groups)
  int64_t n;
  int64_t k;
};

// Where the units of the 16 rows of a panel go.
struct UnitRows {
  int8_t* u;
  float* d;
  int8_t* s;
  int8_t* z;
};

// What units, sub-scales and zero points a format with integer sub-scales stores: u and z in [0, most_unit], s in
// [1, most_scale].
struct SubScaling {
  int64_t group;  // inputs of one sub-scale
  int most_scale;
  int most_unit;
  // Lays out rows [row, row + 16) in a panel that was zero. Throws Error "not_finite" and "out_of_range" that name row
  // and column.
  void (*write)(const Units& units, int64_t row, uint8_t* panel);
  // The opposite.
  void (*read)(const uint8_t* panel, int64_t k, const UnitRows& out);

  int64_t groups(int64_t k) const { return (k + group - 1) / group; }
};

// A matrix (n, k) in units with sub-scales and minima, rows contiguous: w = d s u - e t, with d and e (n, blocks), and
// s and t (n, groups).
struct MinimaUnits {
  const int8_t* u;  // (n, k)
  const float* d;
  const float* e;
  const uint8_t* s;
  const uint8_t* t;
  int64_t n;
  int64_t k;
};

// What a format with minima stores: units in [0, 15], d and e rounded to fp16.
struct MinimaScaling {
  int64_t group;       // inputs of one s and t
  int64_t superblock;  // inputs of one d and e
  // Lays out rows [row, row + 16) in a panel that was zero. Throws as SubScaling's does.
  void (*write)(const MinimaUnits& units, int64_t row, uint8_t* panel);

  int64_t groups(int64_t k) const { return (k + group - 1) / group; }
  int64_t blocks(int64_t k) const { return (k + superblock - 1) / superblock; }
};

// A format as the ABI describes one, and what the core alone needs of it.
struct WeightFormat {
  // Of the core's own `pack` is NULL: they are packed from a source in place. A reserved one has no functions.
  infeng_format abi;
  CodeGrid grid;
  // Quantizes and lays out rows [row, row + 16) of the source as one panel. Throws Error "not_finite", "out_of_range".
  void (*pack)(const WeightFormat& format, const Source& source, int64_t row, uint8_t* panel);
  // The opposite of `abi.unpack`, for 64 inputs: integers and scales into a panel that was zero. NULL where nobody here
  // knows the layout, and for floats.
  void (*write)(uint8_t* panel, int64_t g, ConstIntegers q, ConstScales scale);
  // Looks at the panel of rows [row, row + 16) in somebody's file. Throws Error "not_finite" and "out_of_range" where
  // it holds what no rule writes and kernels do not agree on. NULL where nobody here knows the layout.
  void (*check)(const uint8_t* panel, int64_t k, int64_t row);
  // NULL for a format without integer sub-scales.
  const SubScaling* sub = nullptr;
  // NULL for a format without minima.
  const MinimaScaling* minima = nullptr;

  bool is_reserved() const { return abi.panel_bytes == nullptr; }
};

// The core's own, one file for each family; formats.cc lists the families.
std::span<const WeightFormat> float_formats();
std::span<const WeightFormat> integer_formats();
std::span<const WeightFormat> sub_scaled_formats();
std::span<const WeightFormat> affine_formats();

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
