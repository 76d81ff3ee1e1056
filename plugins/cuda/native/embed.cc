// EMBED of every weight format.
#include "../kernels/embed.h"

#include "flatten.h"

namespace infeng_cuda {
namespace {

template <Entry& entry>
infeng_status run(const infeng_args* common, int32_t, int64_t, int64_t, infeng_worker* worker) {
  const auto& args = *reinterpret_cast<const infeng_embed_args*>(common);
  if (args.weight->layout != 0) return fail(worker, INFENG_INVALID_ARGUMENT, "weight is not in a native layout");
  const Embed p{panels_of(*args.weight), args.ids, matrix_of(args.out)};
  return launch(entry, {common->rows, ceil_div(args.weight->k, kEmbedColumns)}, kEmbedThreads, p, worker);
}

template <uint32_t format>
int32_t accepts(const infeng_problem* p) {
  return p->op == INFENG_OP_EMBED && p->weight_format == format && fuses_only(p, 0);
}

}  // namespace

#define INFENG_EMBED(format, number)                     \
  static Entry embed_##format##_entry{"embed_" #format}; \
  extern "C" const infeng_kernel cuda_embed_##format =   \
      whole_kernel(INFENG_OP_EMBED, "embed_" #format, 0, 0, accepts<number>, run<embed_##format##_entry>)
INFENG_EMBED(f32, INFENG_WEIGHT_F32);
INFENG_EMBED(bf16, INFENG_WEIGHT_BF16);
INFENG_EMBED(int8row, INFENG_WEIGHT_INT8_ROW);
INFENG_EMBED(int8g32, INFENG_WEIGHT_INT8_G32);
INFENG_EMBED(int4g64, INFENG_WEIGHT_INT4_G64);
INFENG_EMBED(int4g32, INFENG_WEIGHT_INT4_G32);
INFENG_EMBED(int4p32, INFENG_WEIGHT_INT4_P32);
INFENG_EMBED(int5p32, INFENG_WEIGHT_INT5_P32);
INFENG_EMBED(int6p32, INFENG_WEIGHT_INT6_P32);
INFENG_EMBED(int4a128, INFENG_WEIGHT_INT4_A128);
INFENG_EMBED(int4a256, INFENG_WEIGHT_INT4_A256);

}  // namespace infeng_cuda
