// All caches of integers in one source: those with the same keys or the same values share code.
// SPDX-License-Identifier: Apache-2.0
#include <infeng/ops/attention.h>

#include "unit.h"

using namespace infeng;

#define ATTENTION(arg, name, Cache)                                         \
  KERNEL_UNIT(attention_##name##_rows, 0, AttentionRows<Unit, Cache<Unit>>) \
  KERNEL_UNIT(attention_##name##_splits, 1, AttentionSplits<Unit, Cache<Unit>>)
INFENG_INT_CACHES(ATTENTION, )
