// SPDX-License-Identifier: Apache-2.0
#include <infeng/ops/rmsnorm.h>

#include "unit.h"

KERNEL(rmsnorm, 0, infeng::Rmsnorm<Unit>)
