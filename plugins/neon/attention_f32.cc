// SPDX-License-Identifier: Apache-2.0
#include <infeng/ops/attention.h>

#include "unit.h"

KERNEL(attention_f32_rows, 0, infeng::AttentionRows<Unit, infeng::AttentionF32<Unit>>)
KERNEL(attention_f32_splits, 1, infeng::AttentionSplits<Unit, infeng::AttentionF32<Unit>>)
