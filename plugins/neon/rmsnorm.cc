// SPDX-License-Identifier: Apache-2.0
#include <infeng/ops/layernorm.h>
#include <infeng/ops/rmsnorm.h>

#include "unit.h"

KERNEL(rmsnorm, 0, infeng::Rmsnorm<Unit>)
KERNEL(layernorm, 0, infeng::Layernorm<Unit>)
