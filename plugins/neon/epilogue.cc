// SPDX-License-Identifier: Apache-2.0
#include <infeng/ops/epilogue.h>

#include "unit.h"

KERNEL(epilogue, 0, infeng::Epilogue<Unit>)
