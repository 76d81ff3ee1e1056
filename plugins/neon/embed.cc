// SPDX-License-Identifier: Apache-2.0
#include <infeng/ops/embed.h>

#include "unit.h"

using namespace infeng;

KERNEL(embed_f32, 0, Embed<Unit, LaneF32>)
KERNEL(embed_bf16, 0, Embed<Unit, LaneBf16>)
#define EMBED(arg, name, Format) KERNEL(embed_##name, 0, Embed<Unit, LaneInt<Format>>)
INFENG_INT_FORMATS(EMBED, )
#define EMBED_P32(arg, name, Format) KERNEL(embed_##name, 0, Embed<Unit, LaneP32<Format>>)
INFENG_P32_FORMATS(EMBED_P32, )
#define EMBED_AFFINE(arg, name, Format) KERNEL(embed_##name, 0, Embed<Unit, LaneAffine<Format>>)
INFENG_AFFINE_FORMATS(EMBED_AFFINE, )
