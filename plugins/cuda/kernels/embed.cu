// embed: rows of a packed weight, widened. Block (m, j) has part j of row m.
#include "embed.h"

#include "formats.cuh"

namespace infeng_cuda {
namespace {

template <class Format>
DEV void embed(const Embed& p) {
  const int64_t row = blockIdx.x;
  const int id = p.ids[row], begin = static_cast<int>(blockIdx.y) * kEmbedColumns + static_cast<int>(threadIdx.x);
  const uint8_t* const panel = p.weight.data + id / kPanel * p.weight.panel_bytes;
  float* const out = p.out.data + row * p.out.stride;
  UNROLL
  for (int i = 0; i < kEmbedColumns / kEmbedThreads; ++i) {
    const int k = begin + i * kEmbedThreads;
    if (k < p.weight.k) out[k] = Format::value(panel, id % kPanel, k);
  }
}

}  // namespace

KERNEL_OF(embed_f32, Embed, kEmbedThreads, 1) { embed<F32>(p); }
KERNEL_OF(embed_bf16, Embed, kEmbedThreads, 1) { embed<Bf16>(p); }
KERNEL_OF(embed_int8row, Embed, kEmbedThreads, 1) { embed<Int8Row>(p); }
KERNEL_OF(embed_int8g32, Embed, kEmbedThreads, 1) { embed<Int8G32>(p); }
KERNEL_OF(embed_int4g64, Embed, kEmbedThreads, 1) { embed<Int4<64>>(p); }
KERNEL_OF(embed_int4g32, Embed, kEmbedThreads, 1) { embed<Int4<32>>(p); }
KERNEL_OF(embed_int4p32, Embed, kEmbedThreads, 1) { embed<SubScaled<4>>(p); }
KERNEL_OF(embed_int5p32, Embed, kEmbedThreads, 1) { embed<SubScaled<5>>(p); }
KERNEL_OF(embed_int6p32, Embed, kEmbedThreads, 1) { embed<SubScaled<6>>(p); }
KERNEL_OF(embed_int4a128, Embed, kEmbedThreads, 1) { embed<Affine<128>>(p); }
KERNEL_OF(embed_int4a256, Embed, kEmbedThreads, 1) { embed<Affine<256>>(p); }

}  // namespace infeng_cuda
