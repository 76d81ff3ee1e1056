// Descriptors of the weight formats: the core's own and those that libraries register.
#pragma once

#include <infeng/abi.h>

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "weights/source.h"

namespace infeng {

// 64 inputs of 16 outputs in an integer format: q[k][n], and scale[h][n] of their one or two groups.
using Integers = int8_t (*)[kLanes];
using Scales = float (*)[kLanes];
using ConstIntegers = const int8_t (*)[kLanes];
using ConstScales = const float (*)[kLanes];

// The integers and scales of a format.
struct CodeGrid {
  int64_t group;  // inputs that share a scale; 0: all inputs of an output
  int low;        // smallest and largest integer; 0 and 0 for floats
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

// The 16 rows of a panel in the same units, as output.
struct UnitRows {
  int8_t* u;  // (16, k)
  float* d;   // (16)
  int8_t* s;  // (16, groups)
  int8_t* z;  // (16, groups)
};

// A format with integer sub-scales: u and z in [0, most_unit], s in [1, most_scale].
struct SubScaling {
  int64_t group;  // inputs that share a sub-scale
  int most_scale;
  int most_unit;
  // Lays out rows [row, row + 16) in a zeroed panel. Throws Error "not_finite" or "out_of_range" naming row and column.
  void (*write)(const Units& units, int64_t row, uint8_t* panel);
  // Reads a panel of k inputs back.
  void (*read)(const uint8_t* panel, int64_t k, const UnitRows& out);

  int64_t groups(int64_t k) const { return (k + group - 1) / group; }
};

// A matrix (n, k) in units with sub-scales and minima, rows contiguous: w = d s u - e t.
struct MinimaUnits {
  const int8_t* u;   // (n, k)
  const float* d;    // (n, blocks)
  const float* e;    // (n, blocks)
  const uint8_t* s;  // (n, groups)
  const uint8_t* t;  // (n, groups)
  int64_t n;
  int64_t k;
};

// A format with minima: units in [0, 15], d and e rounded to fp16.
struct MinimaScaling {
  int64_t group;       // inputs that share s and t
  int64_t superblock;  // inputs that share d and e
  // Lays out rows [row, row + 16) in a zeroed panel. Throws like SubScaling::write.
  void (*write)(const MinimaUnits& units, int64_t row, uint8_t* panel);

  int64_t groups(int64_t k) const { return (k + group - 1) / group; }
  int64_t blocks(int64_t k) const { return (k + superblock - 1) / superblock; }
};

// The ABI's descriptor of a weight format, and the functions that only the core uses.
struct WeightFormat {
  // `abi.pack` is NULL for the core's own formats, whose `pack` below reads any source. A reserved format has no
  // functions.
  infeng_format abi;
  CodeGrid grid;
  // Quantizes and lays out rows [row, row + 16) of the source as one panel. Throws Error "not_finite", "out_of_range".
  void (*pack)(const WeightFormat& format, const Source& source, int64_t row, uint8_t* panel);
  // The inverse of `abi.unpack`: writes integers and scales of 64 inputs to a zeroed panel. NULL for floats and for
  // formats whose layout only their library knows.
  void (*write)(uint8_t* panel, int64_t g, ConstIntegers q, ConstScales scale);
  // Checks the panel of rows [row, row + 16) in a file. Throws Error "not_finite" or "out_of_range" for contents that
  // no packing rule writes and for which kernels differ. NULL for formats whose layout only their library knows.
  void (*check)(const uint8_t* panel, int64_t k, int64_t row);
  const SubScaling* sub = nullptr;        // NULL for a format without integer sub-scales
  const MinimaScaling* minima = nullptr;  // NULL for a format without minima
};

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
