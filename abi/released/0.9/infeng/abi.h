/* The INF-ENG kernel ABI, version 0.9.
 *
 * This file is the whole contract between the core and a kernel library. It is plain C11, includes nothing of the
 * project, and can be read in one sitting. What each operation computes, down to the order of its floating-point
 * operations, is in docs/numerics.md; the rules of evolution are in docs/abi.md.
 *
 * A library exports one symbol, `infeng_library`. It fills a description that lists kernels. A kernel is a pure
 * function over tiles: it starts no thread, allocates nothing, logs nothing and throws nothing. The core owns threads,
 * memory, barriers and cancellation, and calls `run` on ranges of tiles from all of its workers.
 *
 * Layout rules: every struct that may grow starts with `struct_size`; fields are only ever appended; an extension chain
 * `{size, type, next}` exists from the first version. A function pointer that is NULL means "not implemented".
 * Unless a field says otherwise: strides of a tensor count elements, offsets and strides of caches count bytes,
 * pointers are 64-byte aligned, matrices are row-major. SPDX-License-Identifier: Apache-2.0 */
#ifndef INFENG_ABI_H
#define INFENG_ABI_H

#include <stddef.h>
#include <stdint.h>

#ifdef __FAST_MATH__
#error "INF-ENG kernels promise equal bytes: build without -ffast-math (flags: python -m infeng_abi --cflags)"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------------------------------------- version --- */

/* Majors must be equal. A library built for an older minor always loads in a newer host of the same major; a library
 * built for a newer minor lowers `abi_minor` to the host's or returns INFENG_UNSUPPORTED_ABI, before anything else. */
#define INFENG_ABI_MAJOR 0
#define INFENG_ABI_MINOR 9

#if defined(_WIN32)
#define INFENG_EXPORT __declspec(dllexport)
#else
#define INFENG_EXPORT __attribute__((visibility("default")))
#endif

/* -------------------------------------------------------------------------------------------------- status --- */

typedef int32_t infeng_status;
enum {
  INFENG_OK = 0,
  INFENG_UNIMPLEMENTED = 1,    /* this table entry, op or extension is not provided */
  INFENG_INVALID_ARGUMENT = 2, /* the caller broke the contract */
  INFENG_UNSUPPORTED_ABI = 3,  /* versions cannot be reconciled */
  INFENG_OUT_OF_RANGE = 4,     /* a value does not fit, such as an fp16 scale that overflows */
  INFENG_NOT_FINITE = 5,       /* NaN or infinity where the op accepts finite values only */
  INFENG_INTERNAL = 6
};

/* ------------------------------------------------------------------------------------------------ vocabulary --- */

/* Element types of a tensor view. */
enum {
  INFENG_F32 = 1,
  INFENG_F16 = 2,
  INFENG_BF16 = 3,
  INFENG_I8 = 4,
  INFENG_U8 = 5,
  INFENG_I32 = 6,
  INFENG_I64 = 7,
  INFENG_F8_E4M3 = 8
};

/* Weight formats: the layout of one 16-row panel. docs/format.md draws each byte. */
enum {
  INFENG_WEIGHT_NONE = 0,
  INFENG_WEIGHT_F32 = 1,        /* [k][16 n] */
  INFENG_WEIGHT_BF16 = 2,       /* [k/2][16 n][2 k] */
  INFENG_WEIGHT_INT8_ROW = 3,   /* 16 f32 scales, then [k/4][16 n][4 k] u8 = q + 128 */
  INFENG_WEIGHT_INT4_G64 = 4,   /* per 128 k: 2 x 16 fp16 scales, 16 lines of nibbles, q + 8 */
  INFENG_WEIGHT_INT4_G32 = 5,   /* per  64 k: 2 x 16 fp16 scales,  8 lines of nibbles, q + 8 */
  INFENG_WEIGHT_FP8_E4M3 = 6,   /* reserved: 16 f32 scales, then [k/4][16 n][4 k] */
  INFENG_WEIGHT_INT4_G64_ZP = 7 /* reserved: int4-g64 with zero points */
};

/* What a linear op reads as its input. */
enum {
  INFENG_ACT_NONE = 0,
  INFENG_ACT_F32 = 1,     /* f32 rows */
  INFENG_ACT_INT8_G64 = 2 /* int8 rows, one f32 scale and one i32 sum per group of 64 */
};

/* Key/value cache formats. */
enum {
  INFENG_KV_NONE = 0,
  INFENG_KV_F32 = 1,
  INFENG_KV_F16 = 2,  /* IEEE binary16, no scales */
  INFENG_KV_INT8 = 3, /* one f32 scale per token and head, for K and for V */
  INFENG_KV_FP8 = 4,  /* reserved */
  INFENG_KV_INT4 = 5  /* reserved */
};

enum { INFENG_DEVICE_CPU = 1, INFENG_DEVICE_CUDA = 2 };

/* Operations. Each has one args struct below. */
enum {
  INFENG_OP_EMBED = 1,     /* infeng_embed_args */
  INFENG_OP_RMSNORM = 2,   /* infeng_rmsnorm_args */
  INFENG_OP_LINEAR = 3,    /* infeng_linear_args */
  INFENG_OP_EPILOGUE = 4,  /* infeng_epilogue_args: what a producer could not fuse */
  INFENG_OP_ROPE = 5,      /* infeng_rope_args */
  INFENG_OP_KV_APPEND = 6, /* infeng_kv_append_args */
  INFENG_OP_ATTENTION = 7, /* infeng_attention_args */
  INFENG_OP_SHRINK = 8,    /* infeng_shrink_args: the A half of LoRA */
  INFENG_OP_COUNT = 9
};

/* Steps that may ride at the end of a producing op, in the order in which the list gives them. */
enum {
  INFENG_EPILOGUE_BIAS = 1,      /* cur[m][n] += vector[n] */
  INFENG_EPILOGUE_LORA = 2,      /* cur[m][n] += sum over r of u[m][r] * B[n][r], per segment; first in the list */
  INFENG_EPILOGUE_ROW_SCALE = 3, /* cur[m][n] *= vector[n] */
  INFENG_EPILOGUE_RESIDUAL = 4,  /* cur[m][n] += matrix[m][n] */
  INFENG_EPILOGUE_SILU_MUL = 5,  /* gate and up panels alternate: cur becomes silu(gate) * up, half as wide */
  INFENG_EPILOGUE_QUANTIZE = 6   /* act gets cur as int8 groups of 64; cur stays as it is */
};
#define INFENG_EPILOGUE_BIT(kind) (1u << (kind))

/* ------------------------------------------------------------------------------------------------ structures --- */

/* An extension that a reader may not know; unknown types are skipped, a chain has at most 64 links. */
typedef struct infeng_extension {
  uint32_t size; /* bytes of the struct that starts with this header */
  uint32_t type;
  const struct infeng_extension* next;
} infeng_extension;

/* A view of an array. Frozen: never grows. `data` may be NULL where the field's comment says optional. */
#define INFENG_MAX_DIMS 4
typedef struct infeng_tensor {
  void* data;
  int64_t byte_offset;
  int32_t dtype;
  int32_t device_type;
  int32_t device_id;
  int32_t ndim;
  int64_t shape[INFENG_MAX_DIMS];
  int64_t strides[INFENG_MAX_DIMS]; /* elements */
} infeng_tensor;

/* A linear weight of `n` outputs by `k` inputs in 16-row panels. Panel p starts at data + p * panel_bytes and holds
 * outputs [16p, 16p + 16). K is padded to 64 and lanes without an output are zero weights, so `panels * 16` outputs can
 * always be computed. `layout` 0 is the native panel layout of docs/format.md; other ids come from a `pack`. */
typedef struct infeng_weight {
  uint32_t struct_size;
  uint32_t format; /* INFENG_WEIGHT_* */
  uint64_t layout;
  int64_t n;
  int64_t k;
  int64_t panels;
  int64_t panel_bytes;
  const void* data;
} infeng_weight;

/* Rows of activations, f32 or int8 or both. x[m][c] is about q[m][c] * scale[m][c / 64]. */
typedef struct infeng_activation {
  uint32_t struct_size;
  uint32_t group;      /* 64 */
  infeng_tensor x;     /* (rows, k) f32; optional */
  infeng_tensor q;     /* (rows, k padded to 64) int8, padding is 0; optional */
  infeng_tensor scale; /* (rows, groups) f32 */
  infeng_tensor sum;   /* (rows, groups) int32: sum of q over the group */
} infeng_activation;

/* Rows [row_begin, row_end) use one adapter. Segments are sorted by row_begin, may overlap (adapters combine) and apply
 * in order. A row that no segment covers costs nothing. SHRINK has one segment for each adapter and op: the A's of all
 * its projections are stacked (q, k and v share x). LORA has one for each projection: the output panels of one. */
typedef struct infeng_lora_segment {
  int32_t row_begin;
  int32_t row_end;
  int32_t rank;        /* columns of u that SHRINK makes or LORA reads; 0 in LORA: row_scale or bias only */
  uint32_t dtype;      /* INFENG_F32, INFENG_BF16 or INFENG_I8: storage of a and b */
  int32_t u_column;    /* the first of them; SHRINK owns rank padded to 16 columns */
  float weight;        /* SHRINK: u = (sum * scaling[r]) * weight */
  int32_t panel_begin; /* LORA: the outputs of panels panel_begin + i * panel_step, i < panel_count */
  int32_t panel_step;
  int32_t panel_count;
  int32_t reserved;
  /* SHRINK: ceil(rank / 16) panels of 16 rank rows over k, as a weight f32, bf16 or int8-row (scales at its head) */
  const void* a;
  const float* scaling;   /* SHRINK: (rank padded to 16) */
  const void* b;          /* LORA: [panel_count][rank][16]; INFENG_I8 is signed */
  const float* b_scale;   /* LORA: (panel_count * 16) for INFENG_I8, else NULL */
  const float* row_scale; /* LORA, optional: (panel_count * 16): cur *= row_scale[n] after the sum (DoRA) */
  const float* bias;      /* LORA, optional: (panel_count * 16): cur += bias[n] after row_scale */
} infeng_lora_segment;

/* One step of an epilogue list. Which fields are read depends on `kind`. */
typedef struct infeng_epilogue {
  uint32_t struct_size;
  uint32_t kind; /* INFENG_EPILOGUE_* */
  const infeng_extension* next;
  /* BIAS, ROW_SCALE: (panels * 16) f32. RESIDUAL: (rows, n) f32, may be `out`. LORA: u, (rows, columns) f32. */
  infeng_tensor operand;
  infeng_activation act;               /* QUANTIZE: where q, scale and sum are written */
  const infeng_lora_segment* segments; /* LORA */
  int32_t segment_count;
  uint32_t segment_stride; /* bytes from one segment to the next */
} infeng_epilogue;

/* One layer's paged cache. A block holds `block_tokens` (16) positions of every head. For kv head h of block b the slab
 * is base + b * block_stride + h * head_stride; K, V and scales lie at the offsets below, in bytes.
 *
 *   f32, f16: K [head_dim][16 tokens], V [16 tokens][head_dim]
 *   int8: K [head_dim / 4][16 tokens][4] u8 = q + 128, V [16 tokens][head_dim] int8, k_scale and v_scale [16] f32
 */
typedef struct infeng_kv_cache {
  uint32_t struct_size;
  uint32_t format; /* INFENG_KV_* */
  void* base;
  int64_t block_stride;
  int64_t head_stride;
  int64_t k_offset;
  int64_t v_offset;
  int64_t k_scale_offset;
  int64_t v_scale_offset;
  int32_t block_tokens;
  int32_t block_count;
  int32_t kv_heads;
  int32_t head_dim;
} infeng_kv_cache;

/* Rows [row_begin, row_end) are consecutive positions pos0, pos0 + 1, ... of one sequence: one row when decoding, a
 * chunk when prefilling, k + 1 rows when verifying a draft. Row r attends to positions [0, pos0 + (r - row_begin)]. */
typedef struct infeng_kv_segment {
  int32_t row_begin;
  int32_t row_end;
  int32_t pos0;
  int32_t length;             /* positions in the cache once these rows are appended: pos0 + row_end - row_begin */
  const int32_t* block_table; /* block of positions [16 i, 16 i + 16) */
} infeng_kv_segment;

/* -------------------------------------------------------------------------------------------- op arguments --- */

/* Every args struct starts like this one, so that a host can read `rows` of any op. */
typedef struct infeng_args {
  uint32_t struct_size;
  uint32_t epilogue_count;
  const infeng_extension* next;
  const infeng_epilogue* epilogues; /* applied to the op's result in order, `struct_size` apart; NULL if none */
  int64_t rows;
} infeng_args;

/* out[m] = row ids[m] of the weight, widened to f32. */
typedef struct infeng_embed_args {
  infeng_args common;
  const int32_t* ids; /* (rows) each in [0, weight.n) */
  infeng_weight weight;
  infeng_tensor out; /* (rows, k) f32 */
} infeng_embed_args;

/* y = (x * 1/sqrt(mean(x^2) + eps)) * weight. May fuse QUANTIZE. */
typedef struct infeng_rmsnorm_args {
  infeng_args common;
  infeng_tensor x;          /* (any, k) f32 */
  const int32_t* row_index; /* (rows) rows of x to read; NULL: 0, 1, 2, ... */
  infeng_tensor weight;     /* (k) f32 */
  infeng_tensor out;        /* (rows, k) f32; optional when an epilogue writes the result */
  float eps;
  int32_t reserved;
} infeng_rmsnorm_args;

/* cur = x W^T, then the epilogues, then `out` gets cur. */
typedef struct infeng_linear_args {
  infeng_args common;
  infeng_activation in;
  infeng_weight weight;
  /* (rows, panels * 16) f32, half as wide after SILU_MUL; optional when QUANTIZE writes the result */
  infeng_tensor out;
} infeng_linear_args;

/* cur = in, then the epilogues, then `out` gets cur. */
typedef struct infeng_epilogue_args {
  infeng_args common;
  infeng_tensor in; /* (rows, n) f32 */
  /* (rows, n) f32, half as wide after SILU_MUL; may be `in`; optional when QUANTIZE writes the result */
  infeng_tensor out;
} infeng_epilogue_args;

/* Rotates q and k in place. Pairs are (i, i + rot/2), rot = 2 * cos.shape[1] <= head_dim; the rest of a head is
 * unchanged. */
typedef struct infeng_rope_args {
  infeng_args common;
  infeng_tensor q;          /* (rows, heads, head_dim) f32 */
  infeng_tensor k;          /* (rows, kv_heads, head_dim) f32 */
  const int32_t* positions; /* (rows) */
  infeng_tensor cos;        /* (positions, rot/2) f32 */
  infeng_tensor sin;        /* (positions, rot/2) f32 */
} infeng_rope_args;

/* Writes each row's k and v to its position in the cache, converting to the cache's format. */
typedef struct infeng_kv_append_args {
  infeng_args common;
  infeng_tensor k; /* (rows, kv_heads, head_dim) f32 */
  infeng_tensor v; /* (rows, kv_heads, head_dim) f32 */
  infeng_kv_cache cache;
  const infeng_kv_segment* segments; /* disjoint, sorted by row */
  int32_t segment_count;
  uint32_t segment_stride; /* bytes from one segment to the next */
} infeng_kv_append_args;

/* Causal attention of each row over its sequence's cache. May fuse QUANTIZE where head_dim is a multiple of 64. */
typedef struct infeng_attention_args {
  infeng_args common;
  infeng_tensor q;   /* (rows, heads, head_dim) f32 */
  infeng_tensor out; /* (rows, heads * head_dim) f32 */
  infeng_kv_cache cache;
  const infeng_kv_segment* segments;
  int32_t segment_count;
  uint32_t segment_stride; /* bytes from one segment to the next */
  float scale;             /* 1/sqrt(head_dim), from the host */
  int32_t window;          /* attend to the last `window` positions only; 0: all */
} infeng_attention_args;

/* u[m][u_column + r] = ((x[m] . A[r]) * scaling[r]) * weight, per segment. */
typedef struct infeng_shrink_args {
  infeng_args common;
  infeng_activation in;
  infeng_tensor u; /* (rows, columns) f32 */
  const infeng_lora_segment* segments;
  int32_t segment_count;
  uint32_t segment_stride;
} infeng_shrink_args;

/* -------------------------------------------------------------------------------------------------- kernels --- */

/* What a kernel is asked to be good for, known when an engine is assembled: types and bounds, no pointers. Fields that
 * an op does not use are 0. */
typedef struct infeng_problem {
  uint32_t struct_size;
  uint32_t op;
  const infeng_extension* next;
  uint32_t weight_format;
  uint32_t act_format;
  uint32_t kv_format;
  uint32_t epilogues; /* bits of the epilogues to fuse */
  int64_t rows_min;
  int64_t rows_max;
  int64_t n; /* outputs, panels * 16 */
  int64_t k;
  int64_t context; /* most positions of one sequence */
  int32_t heads;
  int32_t kv_heads;
  int32_t head_dim;
  int32_t workers;
} infeng_problem;

/* Scratch memory, taken once when the kernel is bound. */
typedef struct infeng_workspace {
  uint32_t struct_size;
  uint32_t align;     /* 0: 64 */
  int64_t shared;     /* bytes that all workers see; survives from phase to phase of one call */
  int64_t per_worker; /* bytes of each worker's own */
} infeng_workspace;

/* The calling thread's place in the pool. `message` takes an error text, NUL-terminated, so that nothing allocates. */
typedef struct infeng_worker {
  uint32_t struct_size;
  int32_t index;
  int32_t count;
  int32_t message_size;
  void* shared;
  void* private_;
  char* message;
} infeng_worker;

enum { INFENG_NUMERICS_EXACT = 1, INFENG_NUMERICS_APPROX = 2 };
enum { INFENG_KIND_TILES = 1, INFENG_KIND_WHOLE = 2 };

typedef struct infeng_kernel {
  uint32_t struct_size;
  uint32_t op;
  const infeng_extension* next;
  const char* name;     /* unique in its library, such as "linear_int4g64_vnni" */
  const char* features; /* CPU features it needs beyond the library's own, separated by commas; "" for none */
  uint32_t numerics;    /* INFENG_NUMERICS_* */
  uint32_t kind;        /* TILES: `run` on ranges of tiles. WHOLE: one call, workers parked */
  int32_t priority;     /* breaks ties within a library; larger wins */
  uint32_t fuses;       /* INFENG_EPILOGUE_BITs it can take into itself */
  /* Nonzero if the kernel can do the problem. Pure. */
  int32_t (*accepts)(const infeng_problem* problem);
  /* NULL: needs none. */
  infeng_status (*workspace)(const infeng_problem* problem, infeng_workspace* out);
  /* Number of phases of this call; all tiles of one are done before any of the next. NULL: 1. */
  int32_t (*phases)(const infeng_args* args);
  int64_t (*tiles)(const infeng_args* args, int32_t phase);
  /* Tiles [first, last) of a phase. Leaves MXCSR as it was, upper vector halves zeroed and AMX tiles released. */
  infeng_status (*run)(const infeng_args* args, int32_t phase, int64_t first, int64_t last, infeng_worker* worker);
  /* Optional: a private weight layout. `pack_size` gives the bytes and the layout's id, `pack` converts from layout 0.
   * Weights of equal source and id share one copy. */
  int64_t (*pack_size)(const infeng_weight* weight, uint64_t* layout);
  infeng_status (*pack)(const infeng_weight* weight, void* out, int64_t out_bytes, infeng_worker* worker);
} infeng_kernel;

/* -------------------------------------------------------------------------------------------------- library --- */

typedef struct infeng_host {
  uint32_t struct_size;
  uint16_t abi_major;
  uint16_t abi_minor;
  const infeng_extension* next;
  const char* version;  /* of the core */
  const char* features; /* CPU features that may be used, separated by commas */
} infeng_host;

typedef struct infeng_library_desc {
  uint32_t struct_size; /* set by the host: the bytes it can read */
  uint16_t abi_major;   /* set by the library: the version it was built for, or the host's if it negotiated down */
  uint16_t abi_minor;
  const infeng_extension* next;
  const char* name;
  const char* version;
  const infeng_kernel* const* kernels; /* stays valid for ever: a library is never unloaded */
  int32_t kernel_count;
  int32_t reserved;
  /* Optional. Called on each worker thread when a pool that may use this library starts and ends. */
  infeng_status (*thread_enter)(void);
  void (*thread_exit)(void);
  void (*shutdown)(void);
} infeng_library_desc;

/* The one exported symbol. On failure writes nothing but `abi_major` and `abi_minor`. */
INFENG_EXPORT infeng_status infeng_library(const infeng_host* host, infeng_library_desc* out);
typedef infeng_status (*infeng_library_fn)(const infeng_host* host, infeng_library_desc* out);

/* Types of extensions.
 *
 * BACKEND is reserved from the first version: it extends the library description, and a device offers {alloc, copy,
 * submit(program, stream)} through it. A device does not run tile functions.
 *
 * FETCH extends the args of a linear, as infeng_fetch: memory that a later op of this step reads from its start to its
 * end. It is a hint. A kernel may fetch it into its L2 cache while it streams its weight, each worker its
 * share of all ranges as if they lay one behind the other, since later tiles are dealt out in the same order. */
enum { INFENG_EXTENSION_BACKEND = 1, INFENG_EXTENSION_FETCH = 2 };

typedef struct infeng_range {
  const void* data;
  int64_t bytes;
} infeng_range;

typedef struct infeng_fetch {
  infeng_extension head;
  const infeng_range* ranges;
  int64_t count;
} infeng_fetch;

#ifdef __cplusplus
}
#endif
#endif /* INFENG_ABI_H */
