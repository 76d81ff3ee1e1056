// CLONED compiles a function twice on x86-64: for any CPU, and with AVX2 for those that have it. Rounding is the same
// in both (no contraction; a written fma is exact with or without the instruction), only the speed differs. The thread
// sanitizer gets one: the choice between two is made before its run time is up. CLONED_WIDE: with AVX-512 too.
// SPDX-License-Identifier: Apache-2.0
#ifndef INFENG_EXTENSION_CLONES_H
#define INFENG_EXTENSION_CLONES_H

#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 12 && \
    !defined(__SANITIZE_THREAD__)
#define INFENG_CLONED __attribute__((target_clones("arch=x86-64-v3", "default")))
#define INFENG_CLONED_WIDE __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define INFENG_CLONED
#define INFENG_CLONED_WIDE
#endif
#define INFENG_INLINE inline __attribute__((always_inline))

#endif  // INFENG_EXTENSION_CLONES_H
