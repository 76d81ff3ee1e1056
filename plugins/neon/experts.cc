// SPDX-License-Identifier: Apache-2.0
#include <infeng/ops/experts.h>

#include "unit.h"

KERNEL(route, 0, infeng::Route<Unit>)
KERNEL(combine, 0, infeng::Combine<Unit>)
