// SPDX-License-Identifier: Apache-2.0
#include <infeng/ops/rope.h>

#include "unit.h"

KERNEL(rope, 0, infeng::Rope<Unit>)
