// 16 floats with elementwise arithmetic, in the vectors of the ISA for which the calling function is compiled. They are
// passed by reference, so that no calling convention depends on the ISA, and everything is inlined.
#pragma once

#include <infeng/extension/clones.h>

#include <cstdint>
#include <cstring>

namespace infeng {

typedef float EightFloats __attribute__((vector_size(32)));
typedef int32_t EightInts __attribute__((vector_size(32)));

struct Lanes {
  EightFloats half[2];
};
struct LaneMask {
  EightInts half[2];  // all bits or none
};

INFENG_INLINE Lanes load_lanes(const float x[16]) {
  Lanes made;
  std::memcpy(&made.half[0], x, sizeof made.half[0]);
  std::memcpy(&made.half[1], x + 8, sizeof made.half[1]);
  return made;
}
INFENG_INLINE void store_lanes(float x[16], const Lanes& a) {
  std::memcpy(x, &a.half[0], sizeof a.half[0]);
  std::memcpy(x + 8, &a.half[1], sizeof a.half[1]);
}
INFENG_INLINE Lanes every_lane(float x) {
  const EightFloats all = {x, x, x, x, x, x, x, x};
  return {{all, all}};
}
INFENG_INLINE Lanes operator+(const Lanes& a, const Lanes& b) {
  return {{a.half[0] + b.half[0], a.half[1] + b.half[1]}};
}
INFENG_INLINE Lanes operator-(const Lanes& a, const Lanes& b) {
  return {{a.half[0] - b.half[0], a.half[1] - b.half[1]}};
}
INFENG_INLINE Lanes operator*(const Lanes& a, const Lanes& b) {
  return {{a.half[0] * b.half[0], a.half[1] * b.half[1]}};
}
INFENG_INLINE Lanes operator/(const Lanes& a, const Lanes& b) {
  return {{a.half[0] / b.half[0], a.half[1] / b.half[1]}};
}
INFENG_INLINE Lanes operator-(const Lanes& a) { return {{-a.half[0], -a.half[1]}}; }
INFENG_INLINE LaneMask operator==(const Lanes& a, const Lanes& b) {
  return {{a.half[0] == b.half[0], a.half[1] == b.half[1]}};
}
INFENG_INLINE LaneMask operator<(const Lanes& a, const Lanes& b) {
  return {{a.half[0] < b.half[0], a.half[1] < b.half[1]}};
}
INFENG_INLINE Lanes chosen(const LaneMask& where, const Lanes& yes, const Lanes& no) {
  return {{where.half[0] ? yes.half[0] : no.half[0], where.half[1] ? yes.half[1] : no.half[1]}};
}
// smaller: a < b ? a : b. larger: a > b ? a : b.
INFENG_INLINE Lanes smaller(const Lanes& a, const Lanes& b) {
  return {{a.half[0] < b.half[0] ? a.half[0] : b.half[0], a.half[1] < b.half[1] ? a.half[1] : b.half[1]}};
}
INFENG_INLINE Lanes larger(const Lanes& a, const Lanes& b) {
  return {{a.half[0] > b.half[0] ? a.half[0] : b.half[0], a.half[1] > b.half[1] ? a.half[1] : b.half[1]}};
}

}  // namespace infeng
