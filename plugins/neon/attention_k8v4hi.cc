// SPDX-License-Identifier: Apache-2.0
#include <infeng/ops/attention.h>

#include "unit.h"

KERNEL_UNIT(attention_k8v4hi_rows, 0, infeng::AttentionRows<Unit, infeng::AttentionK8V4HI<Unit>>)
KERNEL_UNIT(attention_k8v4hi_splits, 1, infeng::AttentionSplits<Unit, infeng::AttentionK8V4HI<Unit>>)
