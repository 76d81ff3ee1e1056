// SPDX-License-Identifier: Apache-2.0
#include <infeng/ops/kv_append.h>

#include "unit.h"

KERNEL(kv_append_f32, 0, infeng::KvAppend<Unit, infeng::KvF32<Unit>>)
KERNEL(kv_append_f16, 0, infeng::KvAppend<Unit, infeng::KvF16<Unit>>)
KERNEL(kv_append_int8, 0, infeng::KvAppend<Unit, infeng::KvInt8<Unit>>)
