// SPDX-License-Identifier: Apache-2.0
#include <infeng/ops/attention.h>

#include "unit.h"

KERNEL(attention_f16_rows, 0, infeng::AttentionRows<Unit, infeng::AttentionF16<Unit>>)
KERNEL(attention_f16_splits, 1, infeng::AttentionSplits<Unit, infeng::AttentionF16<Unit>>)
