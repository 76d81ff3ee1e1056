/* The version of the SDK: the headers of `c/`, `ops/`, `simd/` and `extension/`, which help to write kernels and are
 * compiled into them. No host sees them, so that they change without a change of the ABI: within a major, sources that
 * compile with one minor compile with later ones; `extension/` serves this project and may change at any time.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef INFENG_SDK_H
#define INFENG_SDK_H

#define INFENG_SDK_MAJOR 0
#define INFENG_SDK_MINOR 1

#endif /* INFENG_SDK_H */
