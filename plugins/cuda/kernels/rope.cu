// rope: block (m, j) has some heads of row m, a warp each; those of k follow those of q.
#include "rope.h"

#include "functions.cuh"

namespace infeng_cuda {
namespace {

// 1 / sqrt(mean(x^2) + eps): lanes i and 16 + i add the squares of virtual lane i.
DEV float inverse_deviation(const float* x, int size, float eps, int lane) {
  float sum = 0.0f;
  for (int i = lane % kPanel; i < size; i += kPanel) sum = fmaf(x[i], x[i], sum);
  UNROLL
  for (int mask = kPanel / 2; mask > 0; mask /= 2) sum = sum + shuffle_xor(sum, mask);
  return 1.0f / sqrtf(sum / static_cast<float>(size) + eps);
}

}  // namespace

KERNEL_OF(rope, Rope, 32 * kRopeWarps, 1) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int number = static_cast<int>(blockIdx.y) * kRopeWarps + static_cast<int>(threadIdx.x) / 32;
  if (number >= p.q.heads + p.k.heads) return;  // the whole warp
  const bool is_q = number < p.q.heads;
  const RopeHeads& heads = is_q ? p.q : p.k;
  const int64_t row = blockIdx.x, position = p.positions[row];
  float* const x = heads.data + row * heads.stride + (is_q ? number : number - p.q.heads) * heads.head_stride;
  const float* const c = p.cos + position * p.cos_stride;
  const float* const s = p.sin + position * p.sin_stride;
  const bool has_norm = heads.norm != nullptr, has_scale = heads.scale != nullptr;
  const float r = has_norm ? inverse_deviation(x, p.size, p.eps, lane) : 0.0f;
  const float scale = has_scale ? heads.scale[position] : 0.0f;
  const auto read = [&](int i) { return has_norm ? (x[i] * r) * heads.norm[i] : x[i]; };
  const auto write = [&](int i, float value) { x[i] = has_scale ? value * scale : value; };
  sync_warp();  // all lanes have read the head
  for (int i = lane; i < p.half; i += 32) {
    const float a = read(i), b = read(i + p.half);
    const float bs = b * s[i], as = a * s[i];
    write(i, fmaf(a, c[i], -bs));
    write(i + p.half, fmaf(b, c[i], as));
  }
  if (!has_norm && !has_scale) return;
  for (int i = 2 * p.half + lane; i < p.size; i += 32) write(i, read(i));
}

}  // namespace infeng_cuda
