// SPDX-License-Identifier: Apache-2.0
#include <infeng/ops/kv_append.h>

#include "unit.h"

#define APPEND(arg, name, Format) KERNEL(kv_append_##name, 0, infeng::KvAppend<Unit, infeng::Kv##Format<Unit>>)
INFENG_FLOAT_CACHES(APPEND, )
INFENG_INT_CACHES(APPEND, )
