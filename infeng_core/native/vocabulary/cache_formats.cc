#include "vocabulary/cache_formats.h"

#include <infeng/extension/error.h>

#include "weights/arena.h"

namespace infeng {
namespace {

template <int kBytes>
int64_t plain(int64_t dim) {
  return dim * kBlockTokens * kBytes;
}
// Dot products read four elements of a position at a time.
int64_t fours(int64_t dim) { return round_up(dim, 4) * kBlockTokens; }
int64_t half_bytes(int64_t dim) { return dim / 2 * kBlockTokens; }
// V is read 16 elements at a time.
int64_t vectors(int64_t dim) { return plain<1>(round_up(dim, 16)); }
int64_t half_vectors(int64_t dim) { return half_bytes(round_up(dim, 16)); }

// Hadamard blocks of fewer than 8 elements would not spread outliers.
constexpr int16_t kLeastBlock = 8;

constexpr CacheFormat kCacheFormats[] = {
    {INFENG_KV_F32, "f32", plain<4>, plain<4>, false},
    {INFENG_KV_F16, "f16", plain<2>, plain<2>, false},
    {INFENG_KV_INT8, "int8", fours, plain<1>, true},
    {INFENG_KV_INT8_H, "int8h", plain<1>, plain<1>, true, kLeastBlock},
    {INFENG_KV_K8V4_H, "k8v4h", plain<1>, half_vectors, true, kLeastBlock},
    {INFENG_KV_INT4_H, "int4h", half_bytes, half_vectors, true, kLeastBlock},
    {INFENG_KV_FP8_H, "fp8h", plain<1>, plain<1>, true, kLeastBlock},
    {INFENG_KV_INT8_I, "int8i", fours, vectors, true},
    {INFENG_KV_INT8_HI, "int8hi", plain<1>, vectors, true, kLeastBlock},
    {INFENG_KV_K8V4_HI, "k8v4hi", plain<1>, half_vectors, true, kLeastBlock},
    {INFENG_KV_INT4_HI, "int4hi", half_bytes, half_vectors, true, kLeastBlock},
};

}  // namespace

std::span<const CacheFormat> cache_formats() { return kCacheFormats; }

const CacheFormat& cache_format(uint32_t number) {
  for (const CacheFormat& format : kCacheFormats) {
    if (format.number == number) return format;
  }
  fail("unsupported", "there is no cache format ", number);
}

}  // namespace infeng
