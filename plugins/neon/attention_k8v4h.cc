// SPDX-License-Identifier: Apache-2.0
#include <infeng/ops/attention.h>

#include "unit.h"

KERNEL_UNIT(attention_k8v4h_rows, 0, infeng::AttentionRows<Unit, infeng::AttentionK8V4H<Unit>>)
KERNEL_UNIT(attention_k8v4h_splits, 1, infeng::AttentionSplits<Unit, infeng::AttentionK8V4H<Unit>>)
