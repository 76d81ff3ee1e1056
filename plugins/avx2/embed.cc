// SPDX-License-Identifier: Apache-2.0
#include <infeng/ops/embed.h>

#include "unit.h"

using namespace infeng;

KERNEL(embed_f32, 0, Embed<Unit, LaneF32>)
KERNEL(embed_bf16, 0, Embed<Unit, LaneBf16>)
KERNEL(embed_int8row, 0, Embed<Unit, LaneInt<Int8Row>>)
KERNEL(embed_int4g64, 0, Embed<Unit, LaneInt<Int4G64>>)
KERNEL(embed_int4g32, 0, Embed<Unit, LaneInt<Int4G32>>)
