// The vocabulary of device code. nvcc makes machine code of a kernel; g++ makes a program of the same source that runs
// the threads of a block as fibers ("emulated", fibers.h). Both must give the bytes of docs/numerics.md:
//
// - a * b + c is never contracted (-fmad=false, -ffp-contract=off); a fused multiply-add is written fmaf(a, b, c);
// - `/` and sqrtf are IEEE, subnormals are kept; no function of libdevice or of the fast-maths family is used.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#include <cuda_fp16.h>

#define DEV __device__ __forceinline__

// KERNEL(name, Params) { ... } defines a kernel whose body reads its parameters from `p`. KERNEL_OF also says how many
// threads a block has at most, and how many blocks a multiprocessor should hold at least at a time.
#define KERNEL_WITH(name, Params, bounds)                                    \
  static DEV void name##_body(const Params& p);                              \
  extern "C" __global__ void bounds name(const __grid_constant__ Params p) { \
    ::infeng_cuda::follow();                                                 \
    name##_body(p);                                                          \
  }                                                                          \
  static DEV void name##_body([[maybe_unused]] const Params& p)
#define KERNEL(name, Params) KERNEL_WITH(name, Params, )
#define KERNEL_OF(name, Params, threads, blocks) KERNEL_WITH(name, Params, __launch_bounds__(threads, blocks))
#define SHARED __shared__
// Before a loop whose turns are known when the kernel is compiled: its arrays then stay in registers.
#define UNROLL _Pragma("unroll")
// Before a loop that is to stay one, since its turns side by side take too many registers.
#define ROLLED _Pragma("unroll 1")
// The dynamic shared memory of a launch, as an array of T.
#define DYNAMIC_SHARED(T, name)                            \
  extern __shared__ __align__(16) unsigned char name##_[]; \
  T* const name = reinterpret_cast<T*>(name##_)

namespace infeng_cuda {

// A launch may begin while the one before it still runs (driver.cc): blocks take their places early, and wait here
// until all that came before is done and seen.
DEV void follow() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

constexpr unsigned kFullWarp = 0xffffffffu;
DEV void sync_block() { __syncthreads(); }
DEV void sync_warp() { __syncwarp(); }
template <class T>
DEV T shuffle_xor(T value, int mask) {
  return __shfl_xor_sync(kFullWarp, value, mask);
}
template <class T>
DEV T shuffle(T value, int lane) {
  return __shfl_sync(kFullWarp, value, lane);
}

// The largest value of the lanes of a warp.
DEV unsigned warp_max(unsigned value) { return __reduce_max_sync(kFullWarp, value); }

// c + four products of unsigned or signed bytes of `a` and signed bytes of `b`.
DEV int dot4_u8(unsigned a, int b, int c) {
  int d;
  asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}
DEV int dot4_s8(int a, int b, int c) {
  int d;
  asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

// d(16 x 8, s32) += a(16 x 32, s8 or u8, rows) * b(32 x 8, s8, columns), fragments as PTX draws mma.m16n8k32.
#define INFENG_MMA(name, type)                                                        \
  DEV void name(int(&d)[4], const unsigned(&a)[4], const unsigned(&b)[2]) {           \
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32." type                        \
                 ".s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"      \
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])                     \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1])); \
  }
INFENG_MMA(mma_s8, "s8")
INFENG_MMA(mma_u8, "u8")

DEV float float_of_bits(unsigned bits) { return __uint_as_float(bits); }
DEV unsigned bits_of_float(float value) { return __float_as_uint(value); }
DEV float float_of_half(uint16_t half) { return __half2float(__ushort_as_half(half)); }

// A byte permutation of a and b (PTX prmt): nibble i of `selector` names the byte of result byte i.
DEV unsigned permute(unsigned a, unsigned b, unsigned selector) { return __byte_perm(a, b, selector); }

// Reads that bypass the L1 cache, for weights that a step reads once. `address` is 4- or 16-byte aligned.
DEV unsigned stream_word(const void* address) { return __ldcs(static_cast<const unsigned*>(address)); }
struct Words {
  unsigned x, y, z, w;
};
DEV Words stream_words(const void* address) {
  const uint4 v = __ldcs(static_cast<const uint4*>(address));
  return {v.x, v.y, v.z, v.w};
}

// Begins to bring the 128 bytes around an address to the L2 cache.
DEV void prefetch(const void* address) { asm volatile("prefetch.global.L2 [%0];" ::"l"(address)); }

// Copies 16 bytes from global to shared memory in the background; wait_copies<n> leaves the newest n groups running.
DEV void copy_async(void* shared, const void* global) {
  const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(global) : "memory");
}
// The same of 4 bytes.
DEV void copy_word_async(void* shared, const void* global) {
  const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(global) : "memory");
}
DEV void end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int n>
DEV void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory");
}

}  // namespace infeng_cuda

#else
#include "fibers.h"
#endif
