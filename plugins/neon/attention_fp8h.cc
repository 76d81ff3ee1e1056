// SPDX-License-Identifier: Apache-2.0
#include <infeng/ops/attention.h>

#include "unit.h"

KERNEL(attention_fp8h_rows, 0, infeng::AttentionRows<Unit, infeng::AttentionFp8H<Unit>>)
KERNEL(attention_fp8h_splits, 1, infeng::AttentionSplits<Unit, infeng::AttentionFp8H<Unit>>)
