// Tables of rotary position embeddings, computed in double and rounded to f32 once. libm's results differ between
// machines and versions, so the functions are our own, with the reductions and coefficients of fdlibm (Sun
// Microsystems, 1993: e_log.c, e_exp.c, e_rem_pio2.c, k_sin.c, k_cos.c). They use only + - * / of IEEE doubles, so
// every CPU computes the same bits.
#include <infeng/extension/error.h>

#include <pybind11/numpy.h>

#include <bit>
#include <cmath>
#include <cstdint>

#include "bind/bindings.h"
#include "bind/records.h"

namespace py = pybind11;

namespace infeng {
namespace {

// Nearest integer, ties to even, for |x| < 2^51.
double round_even(double x) { return (x + 0x1.8p52) - 0x1.8p52; }

// 2^n for n in [-1022, 1023].
double power_of_two(int n) { return std::bit_cast<double>(uint64_t(n + 1023) << 52); }

constexpr double kLn2High = 6.93147180369123816490e-01;  // 32 bits: n * kLn2High is exact
constexpr double kLn2Low = 1.90821492927058770002e-10;

// ln x of a normal x > 0: x = 2^n (1 + f), sqrt(1/2) < 1 + f <= sqrt(2), s = f / (2 + f),
// ln(1 + f) = f - s (f - R(s^2)), R(z) = 2/3 z + 2/5 z^2 + ... (minimax, error < 2^-58.45).
double natural_log(double x) {
  uint64_t bits = std::bit_cast<uint64_t>(x);
  int n = int(bits >> 52) - 1023;
  double m = std::bit_cast<double>((bits & 0xfffffffffffffu) | uint64_t(1023) << 52);
  if (m > 1.41421356237309504880) {
    m *= 0.5;
    n += 1;
  }
  const double f = m - 1.0;
  const double s = f / (2.0 + f);
  const double z = s * s;
  const double w = z * z;
  const double even = w * (3.999999999940941908e-01 + w * (2.222219843214978396e-01 + w * 1.531383769920937332e-01));
  const double odd =
      z * (6.666666666666735130e-01 +
           w * (2.857142874366239149e-01 + w * (1.818357216161805012e-01 + w * 1.479819860511658591e-01)));
  const double half_square = 0.5 * f * f;
  return n * kLn2High - ((half_square - (s * (half_square + (even + odd)) + n * kLn2Low)) - f);
}

// e^x for |x| < 700: x = n ln 2 + r, e^r = 1 + r + r c / (2 - c), c = r - P(r^2) (error < 2^-59).
double exponential(double x) {
  const double n = round_even(x * 1.44269504088896338700);
  const double high = x - n * kLn2High;
  const double low = n * kLn2Low;
  const double r = high - low;
  const double t = r * r;
  const double c =
      r -
      t * (1.66666666666666019037e-01 +
           t * (-2.77777777770155933842e-03 +
                t * (6.61375632143793436117e-05 + t * (-1.65339022054652515390e-06 + t * 4.13813679705723846039e-08))));
  return (1.0 - ((low - (r * c) / (2.0 - c)) - high)) * power_of_two(int(n));
}

constexpr double kLargestAngle = 0x1p20;  // keeps n below 20 bits, so that n * kHalfPiHigh is exact

// sin and cos for 0 <= x <= kLargestAngle: x = n pi/2 + r, |r| <= pi/4, by a two-part pi/2 (33 + 53 bits).
void sin_cos(double x, double* sine, double* cosine) {
  constexpr double kHalfPiHigh = 1.57079632673412561417e+00;
  constexpr double kHalfPiLow = 6.07710050650619224932e-11;
  const double n = round_even(x * 6.36619772367581382433e-01);
  const double r = (x - n * kHalfPiHigh) - n * kHalfPiLow;
  const double z = r * r;
  const double s = r + r * z *
                           (-1.66666666666666324348e-01 +
                            z * (8.33333333332248946124e-03 +
                                 z * (-1.98412698298579493134e-04 +
                                      z * (2.75573137070700676789e-06 +
                                           z * (-2.50507602534068634195e-08 + z * 1.58969099521155010221e-10)))));
  const double tail = z * z *
                      (4.16666666666666019037e-02 +
                       z * (-1.38888888888741095749e-03 +
                            z * (2.48015872894767294178e-05 +
                                 z * (-2.75573143513906633035e-07 +
                                      z * (2.08757232129817482790e-09 + z * -1.13596475577881948265e-11)))));
  const double half = 0.5 * z;
  const double w = 1.0 - half;
  const double c = w + (((1.0 - w) - half) + tail);
  switch (int64_t(n) & 3) {
    case 0:
      *sine = s, *cosine = c;
      break;
    case 1:
      *sine = c, *cosine = -s;
      break;
    case 2:
      *sine = -s, *cosine = -c;
      break;
    default:
      *sine = -c, *cosine = s;
      break;
  }
}

py::array_t<double> rope_inv_freq(int64_t rot, double theta) {
  if (rot < 2 || rot % 2 != 0 || rot > 1 << 20) fail(kBad, "rot must be even and at least 2, not ", rot);
  if (!(theta >= 1.0 && theta <= 1e300)) fail(kBad, "theta must lie in [1, 1e300], not ", theta);
  py::array_t<double> result(rot / 2);
  double* out = result.mutable_data();
  const double log_theta = natural_log(theta);
  for (int64_t i = 0; i < rot / 2; i++) out[i] = exponential(-(double(2 * i) / double(rot)) * log_theta);
  return result;
}

py::object rope_tables(const py::array_t<float, py::array::c_style>& inv_freq, int64_t positions) {
  if (inv_freq.ndim() != 1) fail(kBad, "inv_freq must be a vector");
  if (positions < 0) fail(kBad, "positions must not be negative");
  const int64_t half = inv_freq.shape(0);
  const float* frequency = inv_freq.data();
  for (int64_t i = 0; i < half; i++) {
    if (!(frequency[i] >= 0.0f && double(frequency[i]) * double(positions) <= kLargestAngle)) {
      fail("out_of_range", "inv_freq[", i, "] is ", frequency[i], ": angles must lie in [0, 2^20]");
    }
  }
  py::array_t<float> cosines({positions, half});
  py::array_t<float> sines({positions, half});
  float* c = cosines.mutable_data();
  float* s = sines.mutable_data();
  {
    const py::gil_scoped_release released;
    for (int64_t p = 0; p < positions; p++) {
      for (int64_t i = 0; i < half; i++) {
        double sine, cosine;
        sin_cos(double(p) * double(frequency[i]), &sine, &cosine);
        c[p * half + i] = float(cosine);
        s[p * half + i] = float(sine);
      }
    }
  }
  return records::rope_tables(cosines, sines);
}

}  // namespace

void bind_rope(py::module_& m) {
  m.def("rope_inv_freq", &rope_inv_freq, py::arg("rot"), py::arg("theta"),
        "Return theta^(-2i/rot) for i < rot/2, from the core's own exp and log.");
  m.def("rope_tables", &rope_tables, py::arg("inv_freq"), py::arg("positions"),
        "Return (cos, sin), each (positions, len(inv_freq)) float32.");
}

}  // namespace infeng
