// INFENG_CLONED compiles a function twice on x86-64: for any CPU, and with AVX2. Both round the same way (no
// contraction; an explicit fma is exact with or without the instruction), only the speed differs. Builds with the
// thread sanitizer have one version, because the dynamic linker selects a version before the sanitizer has started.
// INFENG_CLONED_WIDE adds a version with AVX-512.
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
