// SPDX-License-Identifier: Apache-2.0
#include <infeng/ops/attention.h>

#include "unit.h"

KERNEL_UNIT(attention_int8h_rows, 0, infeng::AttentionRows<Unit, infeng::AttentionInt8H<Unit>>)
KERNEL_UNIT(attention_int8h_splits, 1, infeng::AttentionSplits<Unit, infeng::AttentionInt8H<Unit>>)
