// What packs each weight format: from floats, and from what a quantizer chose.
#pragma once

#include <infeng/abi.h>
#include <infeng/extension/panel.h>

#include <cstdint>
#include <optional>
#include <span>

#include "source.h"

namespace infeng {

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

// A format with integer sub-scales.
struct UnitPacker {
  int64_t group;  // inputs that share a sub-scale
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
struct MinimaPacker {
  int64_t group;       // inputs that share s and t
  int64_t superblock;  // inputs that share d and e
  // Lays out rows [row, row + 16) in a zeroed panel. Throws like UnitPacker::write.
  void (*write)(const MinimaUnits& units, int64_t row, uint8_t* panel);

  int64_t groups(int64_t k) const { return (k + group - 1) / group; }
  int64_t blocks(int64_t k) const { return (k + superblock - 1) / superblock; }
};

struct Packer {
  uint32_t number;  // of the format in the ABI
  // Quantizes and lays out rows [row, row + 16) of the source as one panel. Throws Error "not_finite", "out_of_range".
  // NULL for a library's format.
  void (*pack)(const infeng_format& format, const Source& source, int64_t row, uint8_t* panel);
  CodeGrid grid = {};
  // The inverse of the format's `unpack`: writes integers and scales of 64 inputs to a zeroed panel. NULL for floats
  // and for a library's format.
  void (*write)(uint8_t* panel, int64_t g, ConstIntegers q, ConstScales scale) = nullptr;
  const UnitPacker* units = nullptr;     // NULL for a format without integer sub-scales
  const MinimaPacker* minima = nullptr;  // NULL for a format without minima
};

// The packers of the core's own formats, one file for each family.
std::span<const Packer> float_packers();
std::span<const Packer> integer_packers();
std::span<const Packer> unit_packers();
std::span<const Packer> minima_packers();

// The packer of a format; that of a library's format has no functions, because the library packs (library.h).
const Packer& packer_of(const infeng_format& format);

// The grid of a format whose codes and scales others may choose; none of another. A library's format has one if the
// library writes codes.
std::optional<CodeGrid> grid_of(const infeng_format& format);

// Bytes of one panel of `k` inputs. Throws Error "invalid_argument" for an impossible number of inputs.
int64_t panel_bytes_of(const infeng_format& format, int64_t k);

}  // namespace infeng
