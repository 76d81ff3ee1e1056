// All caches of integers in one source: those with the same keys or the same values share code.
// SPDX-License-Identifier: Apache-2.0
#include <infeng/ops/attention.h>

#include "unit.h"

using namespace infeng;

#define ATTENTION(arg, name, Format)                                                    \
  KERNEL_UNIT(attention_##name##_rows, 0, AttentionRows<Unit, Attention##Format<Unit>>) \
  KERNEL_UNIT(attention_##name##_splits, 1, AttentionSplits<Unit, Attention##Format<Unit>>)
INFENG_INT_CACHES(ATTENTION, )
