// SPDX-License-Identifier: Apache-2.0
#include <infeng/ops/kv_append.h>

#include "unit.h"

KERNEL(kv_append_f32, 0, infeng::KvAppend<Unit, infeng::KvF32<Unit>>)
KERNEL(kv_append_f16, 0, infeng::KvAppend<Unit, infeng::KvF16<Unit>>)
KERNEL(kv_append_int8, 0, infeng::KvAppend<Unit, infeng::KvInt8<Unit>>)
KERNEL(kv_append_int8h, 0, infeng::KvAppend<Unit, infeng::KvInt8H<Unit>>)
KERNEL(kv_append_k8v4h, 0, infeng::KvAppend<Unit, infeng::KvK8V4H<Unit>>)
KERNEL(kv_append_int4h, 0, infeng::KvAppend<Unit, infeng::KvInt4H<Unit>>)
KERNEL(kv_append_fp8h, 0, infeng::KvAppend<Unit, infeng::KvFp8H<Unit>>)
KERNEL(kv_append_int8i, 0, infeng::KvAppend<Unit, infeng::KvInt8I<Unit>>)
KERNEL(kv_append_int8hi, 0, infeng::KvAppend<Unit, infeng::KvInt8HI<Unit>>)
KERNEL(kv_append_k8v4hi, 0, infeng::KvAppend<Unit, infeng::KvK8V4HI<Unit>>)
KERNEL(kv_append_int4hi, 0, infeng::KvAppend<Unit, infeng::KvInt4HI<Unit>>)
