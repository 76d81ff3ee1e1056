/* The INF-ENG kernel ABI, version 0.11.
 *
 * This file is the contract between the core and a kernel library, in plain C11. docs/numerics.md defines each
 * operation, down to the order of floating-point operations; docs/abi.md has the rules of evolution.
 *
 * A library exports one symbol, `infeng_library`. It fills a description that lists kernels. A kernel is a pure
 * function over tiles: it starts no thread, allocates nothing, logs nothing and throws nothing. The core owns threads,
 * memory, barriers and cancellation, and calls `run` on ranges of tiles from all of its workers.
 *
 * Layout rules: every struct that may grow starts with `struct_size` and is held by pointer; new fields are appended
 * only. A new field that changes the meaning of an op has a bit of `needs`, so that older kernels are not bound to ops
 * that use it. A NULL function pointer means "not implemented".
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
/* Majors must be equal, and minors below SINCE are refused. A newer host loads a library built for an older minor; a
 * library built for a newer minor lowers its `abi_minor` to that of the host (ops/library.h). */
#define INFENG_ABI_MAJOR 0
#define INFENG_ABI_MINOR 11
#define INFENG_ABI_SINCE 11

/* The revision of what ops compute (docs/numerics.md); the host refuses libraries of another one. */
#define INFENG_NUMERICS 1
#define INFENG_EXPORT __attribute__((visibility("default")))

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
/* Element types of a tensor view; I8T4 is a storage of adapters only. */
enum { INFENG_F32 = 1, INFENG_F16 = 2, INFENG_BF16 = 3, INFENG_F8_E4M3 = 8 };
enum { INFENG_I8 = 4, INFENG_U8 = 5, INFENG_I32 = 6, INFENG_I64 = 7, INFENG_I8T4 = 9 };

/* Weight formats: layouts of a panel (docs/format.md). The host numbers formats of libraries from FOREIGN on. */
enum {
  INFENG_WEIGHT_NONE = 0,
  INFENG_WEIGHT_F32 = 1,        /* [k][16 n] */
  INFENG_WEIGHT_BF16 = 2,       /* [k/2][16 n][2 k] */
  INFENG_WEIGHT_INT8_ROW = 3,   /* 16 f32 scales, then [k/4][16 n][4 k] u8 = q + 128 */
  INFENG_WEIGHT_INT4_G64 = 4,   /* per 128 k: 2 x 16 fp16 scales, 16 lines of nibbles, q + 8 */
  INFENG_WEIGHT_INT4_G32 = 5,   /* per  64 k: 2 x 16 fp16 scales,  8 lines of nibbles, q + 8 */
  INFENG_WEIGHT_INT4_P32 = 8,   /* 16 f32 scales, then per 128 k: a line of integer sub-scales, 16 lines of nibbles */
  INFENG_WEIGHT_INT5_P32 = 9,   /* the same with a line of upper bits behind every 4 lines of nibbles */
  INFENG_WEIGHT_INT6_P32 = 10,  /* the same with two lines of upper bits */
  INFENG_WEIGHT_INT8_G32 = 11,  /* per  64 k: 2 x 16 fp16 scales, then [16][16 n][4 k] u8 = q + 128 */
  INFENG_WEIGHT_INT4_A256 = 12, /* per 256 k: 2 x 16 fp16 scales; per 64 k: a line of s and t, 8 lines of nibbles */
  INFENG_WEIGHT_INT4_A128 = 13, /* the same per 128 k */
  INFENG_WEIGHT_FOREIGN = 0x10000
};

/* The activation that a linear op reads. */
enum {
  INFENG_ACT_NONE = 0,
  INFENG_ACT_F32 = 1,       /* f32 rows */
  INFENG_ACT_INT8_G64 = 2,  /* int8 rows, one f32 scale and one i32 sum per group of 64 */
  INFENG_ACT_INT8_G128 = 3, /* the same, but 2 groups share a scale: a linear adds both products, then scales */
  INFENG_ACT_INT8_G256 = 4, /* the same, but 4 groups share a scale */
  INFENG_ACT_INT8_ROW = 5   /* the same, but all groups of a row share a scale */
};

/* The group of INFENG_ACT_INT8_ROW, and the most inputs of such a row: all products of it fit in an int32. */
#define INFENG_GROUP_ROW 0x40000000
#define INFENG_MOST_ROW_INPUTS 131072

/* KV cache formats. H: rotated by a Hadamard matrix over the head (size a multiple of 8), with scales as in INT8. */
enum {
  INFENG_KV_NONE = 0,
  INFENG_KV_F32 = 1,
  INFENG_KV_F16 = 2,      /* IEEE binary16, no scales */
  INFENG_KV_INT8 = 3,     /* one f32 scale per token and head, for K and for V */
  INFENG_KV_INT8_H = 6,   /* K and V in 8 bits */
  INFENG_KV_K8V4_H = 7,   /* K of INT8_H, V of INT4_H */
  INFENG_KV_INT4_H = 8,   /* K and V in 4 bits */
  INFENG_KV_FP8_H = 9,    /* K and V as e4m3 numbers */
  INFENG_KV_INT8_I = 10,  /* INT8 whose V attention multiplies in integers */
  INFENG_KV_INT8_HI = 11, /* the same of INT8_H */
  INFENG_KV_K8V4_HI = 12, /* of K8V4_H */
  INFENG_KV_INT4_HI = 13  /* of INT4_H */
};

/* Operations. Each has one args struct below. The host numbers ops of libraries from FOREIGN on. */
enum {
  INFENG_OP_EMBED = 1,      /* infeng_embed_args */
  INFENG_OP_RMSNORM = 2,    /* infeng_rmsnorm_args */
  INFENG_OP_LINEAR = 3,     /* infeng_linear_args */
  INFENG_OP_EPILOGUE = 4,   /* infeng_epilogue_args: steps that a producing kernel did not fuse */
  INFENG_OP_ROPE = 5,       /* infeng_rope_args */
  INFENG_OP_KV_APPEND = 6,  /* infeng_kv_append_args */
  INFENG_OP_ATTENTION = 7,  /* infeng_attention_args */
  INFENG_OP_SHRINK = 8,     /* infeng_shrink_args: the A half of LoRA */
  INFENG_OP_ROUTE = 9,      /* infeng_route_args: the choice of experts for each row */
  INFENG_OP_COMBINE = 10,   /* infeng_combine_args: the weighted sum of the experts' results */
  INFENG_OP_LAYERNORM = 11, /* infeng_layernorm_args */
  INFENG_OP_COUNT = 12,
  INFENG_OP_FOREIGN = 0x10000
};

/* Epilogue steps: a producing op may apply a list of them, in order, to its result `cur`. */
enum {
  INFENG_EPILOGUE_BIAS = 1,      /* cur[m][n] += vector[n] */
  INFENG_EPILOGUE_LORA = 2,      /* cur[m][n] += sum over r of u[m][r] * B[n][r], per segment; first in the list */
  INFENG_EPILOGUE_ROW_SCALE = 3, /* cur[m][n] *= vector[n] */
  INFENG_EPILOGUE_RESIDUAL = 4,  /* cur[m][n] += matrix[m][n] */
  INFENG_EPILOGUE_GATED_MUL = 5, /* gate and up panels alternate: cur becomes f(gate) * up, half as wide */
  INFENG_EPILOGUE_QUANTIZE = 6,  /* act = cur in int8 groups; cur is unchanged */
  INFENG_EPILOGUE_SCALE = 7,     /* cur *= scalar */
  INFENG_EPILOGUE_SOFTCAP = 8,   /* cur = scalar * tanh(cur / scalar) */
  INFENG_EPILOGUE_ACTIVATE = 9,  /* cur = f(cur) */
  INFENG_EPILOGUE_MUL = 10       /* cur[m][n] *= f(matrix[m][n]) */
};

#define INFENG_EPILOGUE_BIT(kind) (1u << (kind))

/* The function f of GATED_MUL, ACTIVATE and MUL. */
enum {
  INFENG_FUNCTION_IDENTITY = 0,  /* MUL only */
  INFENG_FUNCTION_SILU = 1,      /* x * sigmoid(x) */
  INFENG_FUNCTION_GELU = 2,      /* x * Phi(x) with Phi of the normal distribution */
  INFENG_FUNCTION_GELU_TANH = 3, /* the tanh approximation of GELU */
  INFENG_FUNCTION_RELU2 = 4,     /* max(x, 0)^2 */
  INFENG_FUNCTION_SIGMOID = 5,   /* 1 / (1 + exp(-x)) */
  INFENG_FUNCTION_SWIGLU = 6,    /* GATED_MUL only, with slope `scalar`: gate <= limit, |up| <= limit, up + 1 */
  INFENG_FUNCTION_WIDE = 7,      /* QUANTIZE only: `act` has groups of more than 64 inputs, or is rotated */
  INFENG_FUNCTION_ROW = 8        /* QUANTIZE only: `act` has one scale for a row, rotated or not */
};

/* Needs of a problem beyond its op and its formats. A kernel is bound only if it handles all of them. */
enum {
  INFENG_NEED_WINDOW = 0,      /* attention: a window; entries of block_table before it may be -1 */
  INFENG_NEED_SOFTCAP = 1,     /* attention: softcap */
  INFENG_NEED_SINKS = 2,       /* attention: sinks */
  INFENG_NEED_ALIBI = 3,       /* attention: slopes */
  INFENG_NEED_MASK = 4,        /* attention: a mask that is not CAUSAL */
  INFENG_NEED_HEAD_SIZES = 5,  /* kv_append, attention: heads of k and v differ in size */
  INFENG_NEED_ROW_GATHER = 6,  /* ops over rows: row_index */
  INFENG_NEED_NORM_HEADS = 7,  /* rmsnorm: x has heads, each normalized by itself */
  INFENG_NEED_NORM_PLAIN = 8,  /* rmsnorm: no weight */
  INFENG_NEED_NORM_OFFSET = 9, /* rmsnorm: offset */
  INFENG_NEED_ROPE_NORM = 10,  /* rope: q_norm or k_norm */
  INFENG_NEED_ROPE_SCALE = 11, /* rope: q_scale */
  INFENG_NEED_LORA_F32 = 12,   /* LORA: storage of b */
  INFENG_NEED_LORA_BF16 = 13,
  INFENG_NEED_LORA_I8 = 14,
  INFENG_NEED_LORA_I8T4 = 15 /* also of SHRINK */
};

#define INFENG_NEED_BIT(need) (1ull << (need))
#define INFENG_NEED_FUNCTION(function) (32u + (function)) /* a step with this function; IDENTITY needs no bit */
/* The weights of a row's chosen experts: a softmax over the logits of ALL experts, or of the CHOSEN ones only. */
enum { INFENG_SHARE_ALL = 0, INFENG_SHARE_CHOSEN = 1 };
enum { INFENG_DEVICE_CPU = 1 };
enum { INFENG_MASK_CAUSAL = 0, INFENG_MASK_FULL = 1 }; /* FULL: a row sees all positions below its segment's `length` */

/* ------------------------------------------------------------------------------------------------ structures --- */
/* An extension of a struct. A reader skips an extension of unknown type, but refuses the struct if the type has the bit
 * REQUIRED. A chain has at most 64 links. */
#define INFENG_EXTENSION_REQUIRED 0x80000000u
typedef struct infeng_extension {
  uint32_t size; /* bytes of the struct that starts with this header */
  uint32_t type;
  const struct infeng_extension* next;
} infeng_extension;

/* A view of an array. This struct never grows. `data` may be NULL where a field's comment says optional. */
#define INFENG_MAX_DIMS 4
typedef struct infeng_tensor {
  void* data;
  int32_t dtype;
  int32_t device_type;
  int32_t device_id;
  int32_t ndim;
  int64_t shape[INFENG_MAX_DIMS];
  int64_t strides[INFENG_MAX_DIMS]; /* elements */
} infeng_tensor;

/* The worker thread that calls a kernel. */
typedef struct infeng_worker {
  uint32_t struct_size;
  int32_t index; /* in [0, count) */
  int32_t count;
  int32_t message_size;
  void* shared;                   /* scratch memory of all workers */
  void* private_;                 /* scratch memory of this worker */
  char* message;                  /* takes a NUL-terminated error text of at most message_size bytes */
  const struct infeng_team* team; /* the workers, for `run` of a WHOLE kernel; else NULL */
} infeng_worker;

/* The host's workers, which are parked while a WHOLE kernel runs. A kernel may hand parts of its work to them, or run
 * threads of its own on their CPUs. */
typedef infeng_status (*infeng_part)(void* context, int64_t index, infeng_worker* worker);
typedef struct infeng_team {
  uint32_t struct_size;
  int32_t cpu_count;
  const int32_t* cpus; /* (cpu_count) CPUs on which the workers run */
  /* Calls part(context, i, worker) once for each i in [0, count), on all workers, and returns once all calls have
   * ended. After a status that is not OK no further part begins, and the first such status is returned. A part has no
   * team. */
  infeng_status (*each)(const struct infeng_team* team, int64_t count, infeng_part part, void* context);
  /* Nonzero once the step is cancelled: `run` and its parts may end early, with any status. */
  int32_t (*is_cancelled)(const struct infeng_team* team);
} infeng_team;

/* What is packed: a matrix, or a part of one that is packed by itself, such as a projection or an expert. */
typedef struct infeng_source {
  uint32_t struct_size;
  uint32_t reserved;
  const infeng_extension* next;
  const char* tensor;    /* the packed tensor with the matrix, "layers.3.qkv_proj"; NULL if not known, as all names */
  const char* part;      /* the matrix in the checkpoint */
  const char* role;      /* the tensor without its layer, "qkv_proj" */
  int32_t layer;         /* -1: of no layer, or not known */
  int32_t expert;        /* -1: of no expert, or not known */
  infeng_tensor w;       /* (n, k) f32, finite; rows are aligned to 4 bytes only */
  const double* moments; /* optional: (k, k) X'X / m of m rows X of calibration text that the matrix multiplies */
} infeng_source;

/* 64 inputs of a panel in steps of gcd(group, 64). Of integers the field of a step is that of the group that it is
 * part of; with a superblock, scale[0] and minimum[0] are the superblock's. Unpacking leaves out what a format lacks.
 */
typedef struct infeng_block {
  uint32_t struct_size;
  uint32_t reserved[15];
  float w[64][16];  /* of a format of floats, which has no other field */
  int8_t q[64][16]; /* padding is 0 */
  float scale[4][16];
  float minimum[4][16];
  int16_t sub_scale[4][16];
  int16_t sub_minimum[4][16];
} infeng_block;

/* A library's weight format. Libraries that register the same name and geometry get the same number. A panel holds 16
 * outputs over k inputs, k padded to 64, in a multiple of 64 bytes. A weight is a float w; or scale * q - minimum, with
 * a scale and a minimum for each group; or with a superblock scale * (sub_scale * q) - minimum * sub_minimum, with
 * integers of a group, in [-255, 255], under the floats of its superblock. */
typedef struct infeng_format {
  uint32_t struct_size;
  uint32_t number;     /* set by the host when it reads the library's description; problems and weights carry it */
  const char* name;    /* such as "int5-g32" */
  uint32_t act_format; /* input of a linear over it: INFENG_ACT_F32 for floats, INFENG_ACT_INT8_G64 for integers */
  uint32_t group;      /* a multiple of 16, or INFENG_GROUP_ROW; 0 for floats */
  uint32_t superblock; /* a multiple of 64 and of group, or INFENG_GROUP_ROW; 0: none */
  uint32_t has_minima; /* 0 or 1 */
  int32_t low;         /* the smallest and largest q; 0 and 0 for floats */
  int32_t high;
  uint32_t scale_type; /* INFENG_F32 or INFENG_F16: what scales are rounded to; 0 for floats */
  uint32_t reserved;
  int64_t (*panel_bytes)(int64_t k);
  void (*unpack)(const void* panel, int64_t g, infeng_block* out); /* inputs [64 g, 64 g + 64) */
  /* Packs rows [row, row + 16) of the source, as far as it has them, into a panel. NULL: panels come from files only.
   * Panels of a source are packed on several threads, in any order. */
  infeng_status (*pack)(const infeng_source* source, const void* state, int64_t row, void* panel,
                        infeng_worker* worker);
  /* Optional, both or none: what `pack` needs to know of the whole source, made before its first panel. */
  infeng_status (*begin)(const infeng_source* source, void** state, infeng_worker* worker);
  void (*end)(void* state);
  /* Optional, without minima and superblock: writes what `unpack` reads into a zeroed panel, g ascending, so that
   * quantizers of other plugins choose q and scales. */
  void (*write)(void* panel, int64_t g, const infeng_block* block);
} infeng_format;

/* Operands of a library's op over rows of k columns. */
enum {
  INFENG_OPERAND_ROWS = 0,     /* infeng_tensor (rows, k) f32; the first operand is one */
  INFENG_OPERAND_VECTOR = 1,   /* infeng_tensor (k) f32 */
  INFENG_OPERAND_SCALAR = 2,   /* float */
  INFENG_OPERAND_ROW_INDEX = 3 /* const int32_t*, at most one: rows of the first operand to read; NULL: 0, 1, 2, ... */
};

typedef struct infeng_operand {
  const char* name; /* a small letter, then small letters, digits and _ */
  uint32_t kind;    /* INFENG_OPERAND_* */
  uint32_t offset;  /* in the args struct */
  float value;      /* of a scalar in graphs that leave it out, and in tests */
  uint32_t reserved;
} infeng_operand;

/* A library's op over rows. It writes the tensor `out` (rows, k) f32, which is no operand and is optional if an
 * epilogue writes the result. Its args struct begins with an infeng_args. Libraries that register the same name,
 * operands and sizes get the same number. The kernel of the lowest priority is the plain one, with which the host
 * compares others. */
typedef struct infeng_op {
  uint32_t struct_size;
  uint32_t number;  /* set by the host when it reads the library's description; problems carry it */
  const char* name; /* as an operand's */
  const infeng_operand* operands;
  uint32_t operand_count;
  uint32_t operand_stride; /* bytes from one operand to the next */
  uint32_t args_size;
  uint32_t out_offset; /* in the args struct */
} infeng_op;

enum { INFENG_MOST_OPERANDS = 16, INFENG_MOST_ARGS = 1024 };

/* A linear weight of `n` outputs by `k` inputs in 16-row panels. Panel p starts at data + p * panel_bytes and holds
 * outputs [16p, 16p + 16). k is padded to 64 and the last panel is padded with zero weights. `layout` 0 is the format's
 * own; a kernel's `pack` makes other layouts, whose ids belong to its library. */
typedef struct infeng_weight {
  uint32_t struct_size;
  uint32_t format; /* INFENG_WEIGHT_* */
  uint64_t layout;
  int64_t n;
  int64_t k;
  int64_t panels;
  int64_t panel_bytes;
  const void* data;
  const infeng_format* foreign; /* the format if a library registered it; NULL for a format of this header */
} infeng_weight;

/* Rows of activations, f32 or int8 or both. x[m][c] is about q[m][c] * scale[m][c / 64]; in a wider group, every 64
 * inputs repeat its scale and have their own sum. Rotated, q represents H x / 8 of each block, H x / 16 of a block of
 * 256 (H: docs/numerics.md); groups of 64, 128 and 256 are rotated in blocks of 64 only. */
typedef struct infeng_activation {
  uint32_t struct_size;
  uint32_t group;      /* 64, 128, 256 or INFENG_GROUP_ROW */
  infeng_tensor x;     /* (rows, k) f32; optional; never rotated */
  infeng_tensor q;     /* (rows, k padded to 64) int8, padding is 0; optional */
  infeng_tensor scale; /* (rows, k / 64 rounded up) f32 */
  infeng_tensor sum;   /* (rows, k / 64 rounded up) int32: sum of 64 q */
  uint64_t rotated;    /* inputs of a block, 64, 128 or 256, which divides k; 0: none */
} infeng_activation;

/* Rows [row_begin, row_end) use one adapter. Segments are sorted by row_begin, may overlap (adapters combine) and apply
 * in order. LORA has a segment for each projection. SHRINK has one for each adapter and op, with the A's of all its
 * projections (q, k and v share x) stacked in panels of an f32, bf16 or int8-row weight. If rank % 16 is 1 to 8, the
 * last panel is folded: it spans h = 64 ceil(k / 128) inputs, and lane 8 + r holds the inputs of row r from h on.
 * INFENG_I8T4 stores the values of INFENG_I8 in fewer bits, and ops compute the same from them: rank rows 0, 8, 16, ...
 * of a projection have 8 bits, the others q in [-8, 7]; ranks of projections are multiples of 8. A panel of a is 16 f32
 * scales, then per 64 inputs 9 lines: 8 of nibbles as in INT4_G64, q + 8, or in lanes 0 and 8 the upper bits of q +
 * 128, whose lower bits are in the last line: byte 32 h + 4 l + j holds those of lane 8 h, of input 4 l + j in its low
 * nibble, of input 4 (l + 8) + j in its high one. b is [panel_count][rank / 8] blocks of 72 bytes: 16 int8, then 7 rows
 * of 8 bytes, where byte i holds q + 8 of output i in its low nibble, of output i + 8 in its high one. */
typedef struct infeng_lora_segment {
  int32_t row_begin;
  int32_t row_end;
  int32_t rank;        /* columns of u that SHRINK writes or LORA reads; 0 in LORA: row_scale or bias only */
  uint32_t dtype;      /* INFENG_F32, INFENG_BF16, INFENG_I8 or INFENG_I8T4: storage of a and b */
  int32_t u_column;    /* the first column; SHRINK may write rank rounded up to 16 */
  float weight;        /* SHRINK: u = (sum * scaling[r]) * weight */
  int32_t panel_begin; /* LORA: the outputs of panels panel_begin + i * panel_step, i < panel_count */
  int32_t panel_step;
  int32_t panel_count;
  int32_t reserved;
  const void* a;           /* SHRINK: ceil(rank / 16) panels of 16 rank rows over k */
  const float* scaling;    /* SHRINK: (rank padded to 16) */
  const void* b;           /* LORA: [panel_count][rank][16]; INFENG_I8 is signed; I8T4: above */
  const uint16_t* b_scale; /* LORA: (panel_count * 16) bf16 for INFENG_I8 and I8T4, else NULL */
  const float* row_scale;  /* LORA, optional: (panel_count * 16): cur *= row_scale[n] after the sum (DoRA) */
  const float* bias;       /* LORA, optional: (panel_count * 16): cur += bias[n] after row_scale */
} infeng_lora_segment;

/* The header of an epilogue step. In a call the fields of its kind follow; a problem has headers only. */
typedef struct infeng_epilogue {
  uint32_t struct_size; /* of the struct that begins with this header */
  uint32_t kind;        /* INFENG_EPILOGUE_* */
  const infeng_extension* next;
  uint32_t function; /* INFENG_FUNCTION_* */
  float scalar;
  float limit;
  uint32_t reserved;
} infeng_epilogue;

/* BIAS, ROW_SCALE: (panels * 16) f32. RESIDUAL, MUL: (rows, n) f32, may be `out`. */
typedef struct infeng_operand_epilogue {
  infeng_epilogue head;
  infeng_tensor operand;
} infeng_operand_epilogue;

typedef struct infeng_quantize_epilogue {
  infeng_epilogue head;
  const infeng_activation* act; /* q, scale and sum are written */
} infeng_quantize_epilogue;

typedef struct infeng_lora_epilogue {
  infeng_epilogue head;
  infeng_tensor u; /* (rows, columns) f32 */
  const infeng_lora_segment* segments;
  int32_t segment_count;
  uint32_t segment_stride; /* bytes from one segment to the next */
} infeng_lora_epilogue;

/* One layer's paged KV cache. A block holds `block_tokens` (16) positions of every head. The slab of kv head h in block
 * b is at base + b * block_stride + h * head_stride; K, V and scales lie at the offsets below, in bytes.
 *   f32, f16: K [head_dim][16 tokens], V [16 tokens][v_head_dim]; fp8h: the same in e4m3
 *   int8: K [head_dim / 4][16 tokens][4] u8 = q + 128, V [16 tokens][v_head_dim] int8, k_scale and v_scale [16] f32
 *   int8h: as int8; the formats below have its scales too. k8v4h: K as int8, V as int4h
 *   int4h: K [head_dim / 8][16 tokens][4] u8, V [16 tokens][(v_head_dim + 15) / 16][8] u8, nibbles q + 8
 *   int8i, int8hi: K as int8, V [16 tokens / 4][(v_head_dim + 15) / 16][16 columns][4 tokens] int8
 *   k8v4hi, int4hi: K as k8v4h, int4h, V [16 tokens / 4][(v_head_dim + 15) / 16][8 columns][4 tokens] u8, nibbles q + 8
 * In K of int4h, byte j of a token in line l holds elements 4 l + j (low nibble) and 32 + 4 l + j (high) of each 64,
 * elements 8 l + j and 8 l + 4 + j of the last head_dim mod 64. In V, byte i of 8 has i, 8 + i of 16. Padding is 0. */
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
  int32_t head_dim;   /* of k and q */
  int32_t v_head_dim; /* of v and of a head's result */
  int32_t reserved;
} infeng_kv_cache;

/* Rows [row_begin, row_end) are consecutive positions of one sequence from pos0 on: one row in decode, a chunk in
 * prefill, k + 1 rows to verify a draft of k tokens. Row r attends to positions [0, pos0 + (r - row_begin)]. */
typedef struct infeng_kv_segment {
  int32_t row_begin;
  int32_t row_end;
  int32_t pos0;
  int32_t length;             /* cached positions including these rows: pos0 + row_end - row_begin */
  const int32_t* block_table; /* entry i: the block of positions [16 i, 16 i + 16); -1 if no row sees any of them */
} infeng_kv_segment;

/* -------------------------------------------------------------------------------------------- op arguments --- */
/* The beginning of every args struct. */
typedef struct infeng_args {
  uint32_t struct_size;
  uint32_t epilogue_count;
  const infeng_extension* next;
  const infeng_epilogue* const* epilogues; /* applied to the op's result in order; NULL if none */
  int64_t rows;
  void* instance; /* the state that the kernel's `create` made for this op; NULL without `create` */
} infeng_args;

/* out[m] = row ids[m] of the weight, widened to f32. */
typedef struct infeng_embed_args {
  infeng_args common;
  const int32_t* ids; /* (rows) each in [0, weight->n) */
  const infeng_weight* weight;
  infeng_tensor out; /* (rows, k) f32 */
} infeng_embed_args;

/* y = (x * 1/sqrt(mean(x^2) + eps)) * (offset + weight). May fuse QUANTIZE. */
typedef struct infeng_rmsnorm_args {
  infeng_args common;
  infeng_tensor x;          /* (any, k) f32, or (any, heads, k): each head is normalized by itself */
  const int32_t* row_index; /* (rows) rows of x to read; NULL: 0, 1, 2, ... */
  infeng_tensor weight;     /* optional: (k) f32; without it the result is not multiplied */
  infeng_tensor out;        /* shaped as x, may be x; optional if an epilogue writes the result */
  float eps;
  float offset; /* added to the weight; 0 adds nothing */
} infeng_rmsnorm_args;

/* d = x - mean(x); y = d * 1/sqrt(mean(d^2) + eps) * weight + bias. May fuse QUANTIZE. */
typedef struct infeng_layernorm_args {
  infeng_args common;
  infeng_tensor x;          /* (any, k) f32 */
  const int32_t* row_index; /* (rows) rows of x to read; NULL: 0, 1, 2, ... */
  infeng_tensor weight;     /* (k) f32 */
  infeng_tensor bias;       /* (k) f32 */
  infeng_tensor out;        /* (rows, k), may be x; optional if an epilogue writes the result */
  float eps;
  int32_t reserved;
} infeng_layernorm_args;

/* cur = x W^T, then the epilogues, then out = cur. */
typedef struct infeng_linear_args {
  infeng_args common;
  const infeng_activation* in;
  const infeng_weight* weight;
  /* (rows, panels * 16) f32, half as wide after GATED_MUL; optional when QUANTIZE writes the result */
  infeng_tensor out;
} infeng_linear_args;

/* cur = in, then the epilogues, then out = cur. */
typedef struct infeng_epilogue_args {
  infeng_args common;
  infeng_tensor in; /* (rows, n) f32 */
  /* (rows, n) f32, half as wide after GATED_MUL; may be `in`; optional when QUANTIZE writes the result */
  infeng_tensor out;
} infeng_epilogue_args;

/* Rotates q and k in place. Pairs are (i, i + rot/2) with rot = 2 * cos.shape[1] <= head_dim; the rest of a head is
 * unchanged. First, each head is normalized like in rmsnorm if q_norm or k_norm is given; last, q is scaled. */
typedef struct infeng_rope_args {
  infeng_args common;
  infeng_tensor q;          /* (rows, heads, head_dim) f32 */
  infeng_tensor k;          /* (rows, kv_heads, head_dim) f32 */
  const int32_t* positions; /* (rows) */
  infeng_tensor cos;        /* (positions, rot/2) f32 */
  infeng_tensor sin;        /* (positions, rot/2) f32 */
  const float* q_norm;      /* optional: (head_dim) weight of the norm of each head of q */
  const float* k_norm;      /* optional: (head_dim) */
  const float* q_scale;     /* optional: (positions) factor of q */
  float eps;
  int32_t reserved;
} infeng_rope_args;

/* Writes each row's k and v to its position in the cache, converting to the cache's format. */
typedef struct infeng_kv_append_args {
  infeng_args common;
  infeng_tensor k; /* (rows, kv_heads, head_dim) f32 */
  infeng_tensor v; /* (rows, kv_heads, v_head_dim) f32 */
  const infeng_kv_cache* cache;
  const infeng_kv_segment* segments; /* disjoint, sorted by row */
  int32_t segment_count;
  uint32_t segment_stride; /* bytes from one segment to the next */
} infeng_kv_append_args;

/* Attention of each row over its sequence's cache. May fuse QUANTIZE if v_head_dim is a multiple of 64. The score of
 * position t for a row at position P is softcap * tanh(q . k * scale / softcap) + slope * (t - P). */
typedef struct infeng_attention_args {
  infeng_args common;
  infeng_tensor q;   /* (rows, heads, head_dim) f32 */
  infeng_tensor out; /* (rows, heads * v_head_dim) f32 */
  const infeng_kv_cache* cache;
  const infeng_kv_segment* segments;
  int32_t segment_count;
  uint32_t segment_stride; /* bytes from one segment to the next */
  float scale;             /* the model's factor, such as 1/sqrt(head_dim) */
  int32_t window;          /* attend to the last `window` positions only; 0: all */
  float softcap;           /* 0: none */
  uint32_t mask;           /* INFENG_MASK_* */
  const float* sinks;      /* optional: (heads) an additional score whose V is 0 */
  const float* slopes;     /* optional: (heads) ALiBi slopes */
} infeng_attention_args;

/* u[m][u_column + r] = ((x[m] . A[r]) * scaling[r]) * weight, per segment. */
typedef struct infeng_shrink_args {
  infeng_args common;
  const infeng_activation* in;
  infeng_tensor u; /* (rows, columns) f32 */
  const infeng_lora_segment* segments;
  int32_t segment_count;
  uint32_t segment_stride;
} infeng_shrink_args;

/* Each row goes to the `top_k` experts with the largest logits; of equal logits, the lowest expert comes first. Copies
 * of the rows are sorted by expert and then by row. The linears of experts are LINEAR calls on each expert's copies. */
typedef struct infeng_route_args {
  infeng_args common;
  infeng_tensor logits;         /* (rows, experts) f32 */
  const infeng_activation* in;  /* the experts' input, f32 or int8 */
  const infeng_activation* out; /* (rows * top_k): the sorted copies, in the types of `in` */
  int32_t* experts;             /* (rows, top_k), the largest logit first */
  float* weights;               /* (rows, top_k) */
  int32_t* places;              /* (rows, top_k): the copy's row of `out` */
  int32_t* begin;               /* (experts + 1): expert e has rows [begin[e], begin[e + 1]) of `out` */
  int32_t top_k;                /* at most INFENG_MOST_CHOSEN */
  uint32_t share;               /* INFENG_SHARE_* */
} infeng_route_args;

enum { INFENG_MOST_EXPERTS = 4096, INFENG_MOST_CHOSEN = 64 };

/* cur[m] = sum of weights[m][i] * x[places[m][i]], i ascending, then + sigmoid(gate[m]) * shared[m], then epilogues. */
typedef struct infeng_combine_args {
  infeng_args common;
  infeng_tensor x;       /* (rows * top_k, n) f32, sorted as ROUTE sorts */
  infeng_tensor out;     /* (rows, n) f32 */
  const float* weights;  /* (rows, top_k) */
  const int32_t* places; /* (rows, top_k) */
  infeng_tensor shared;  /* optional: (rows, n) f32, result of a shared expert */
  infeng_tensor gate;    /* optional: (rows, 1) f32; without it shared[m] is added unscaled */
  int32_t top_k;
  int32_t reserved;
} infeng_combine_args;

/* -------------------------------------------------------------------------------------------------- kernels --- */
/* The types and bounds of an op, known when an engine is assembled. Fields that the op does not use are 0. */
typedef struct infeng_problem {
  uint32_t struct_size;
  uint32_t op;
  const infeng_extension* next;
  uint32_t weight_format;
  uint32_t act_format;
  uint32_t kv_format;
  uint32_t epilogue_count;
  const infeng_epilogue* const* epilogues; /* headers of the steps to fuse, in order */
  uint64_t needs;                          /* INFENG_NEED_BITs */
  int64_t rows_min;
  int64_t rows_max;
  int64_t n;       /* outputs, panels * 16 */
  int64_t k;       /* inputs; ROUTE: of the experts */
  int64_t context; /* most positions of one sequence */
  int32_t heads;
  int32_t kv_heads;
  int32_t head_dim;
  int32_t v_head_dim;
  int32_t workers;
  int32_t experts; /* ROUTE */
  int32_t top_k;   /* ROUTE, COMBINE: experts of a row */
  int32_t reserved;
} infeng_problem;

/* Scratch memory, taken once when the kernel is bound. */
typedef struct infeng_workspace {
  uint32_t struct_size;
  uint32_t align;     /* 0: 64 */
  int64_t shared;     /* bytes for all workers; contents last from phase to phase of one call */
  int64_t per_worker; /* bytes for each worker */
} infeng_workspace;

enum { INFENG_NUMERICS_EXACT = 1, INFENG_NUMERICS_APPROX = 2 };
enum { INFENG_KIND_TILES = 1, INFENG_KIND_WHOLE = 2 };

typedef struct infeng_kernel {
  uint32_t struct_size;
  uint32_t op; /* INFENG_OP_*; FOREIGN + i is op i of the library's own list */
  const infeng_extension* next;
  const char* name;     /* unique in its library, such as "linear_int4g64_vnni" */
  const char* features; /* CPU features that it needs beyond the library's, separated by commas; "" for none */
  uint32_t numerics;    /* INFENG_NUMERICS_* */
  uint32_t kind;        /* TILES: `run` on ranges of tiles. WHOLE: one call, workers parked */
  int32_t priority;     /* breaks ties within a library; larger wins */
  uint32_t fuses;       /* INFENG_EPILOGUE_BITs of steps that it can apply */
  uint64_t handles;     /* INFENG_NEED_BITs; the host binds it to no problem with other needs */
  /* Nonzero if the kernel can do the problem. Pure. */
  int32_t (*accepts)(const infeng_problem* problem);
  /* NULL: the kernel needs no scratch memory. */
  infeng_status (*workspace)(const infeng_problem* problem, infeng_workspace* out);
  /* Optional, both or none: the kernel's state for one op of a program, which calls get as `args->instance`. The
   * problem has the extension WEIGHT if the op has one weight. */
  infeng_status (*create)(const infeng_problem* problem, void** instance, infeng_worker* worker);
  void (*destroy)(void* instance);
  /* Number of phases of this call; all tiles of a phase are done before the next one begins. NULL: 1. */
  int32_t (*phases)(const infeng_args* args);
  int64_t (*tiles)(const infeng_args* args, int32_t phase);
  /* Runs tiles [first, last) of a phase. Keeps MXCSR, zeroes the upper halves of vectors and releases AMX tiles. */
  infeng_status (*run)(const infeng_args* args, int32_t phase, int64_t first, int64_t last, infeng_worker* worker);
  /* Optional: a private weight layout. `pack_size` returns its bytes and its id, `pack` converts from layout 0. Kernels
   * of a library that ask for the same id share one copy of a weight. */
  int64_t (*pack_size)(const infeng_weight* weight, uint64_t* layout);
  infeng_status (*pack)(const infeng_weight* weight, void* out, int64_t out_bytes, infeng_worker* worker);
  /* Optional, of a kernel with `create`: called by one worker before `run` if the op has another number of rows than at
   * its last call. Unlike `run` it may allocate, and compile what `run` needs for so many rows. */
  infeng_status (*prepare)(void* instance, int64_t rows, infeng_worker* worker);
  /* APPROX: how far any result may be from the exact one, as a fraction of the largest magnitude among the results; at
   * most INFENG_MOST_BOUND, which 0 stands for. */
  float bound;
  uint32_t reserved;
} infeng_kernel;

#define INFENG_MOST_BOUND 0.03125f

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
  const infeng_kernel* const* kernels; /* valid as long as the process: a library is never unloaded */
  int32_t kernel_count;
  int32_t format_count;
  infeng_format* const* formats; /* formats that its kernels read and that this header lacks; the host numbers them */
  /* Optional. Called once on each thread that runs the library's kernels: before the first call, and when it ends. */
  infeng_status (*thread_enter)(void);
  void (*thread_exit)(void);
  uint32_t numerics; /* INFENG_NUMERICS; 0 counts as 1 */
  int32_t op_count;
  infeng_op* const* ops; /* ops over rows that its kernels compute and that this header lacks; the host numbers them */
} infeng_library_desc;

/* The only exported symbol. On failure it writes nothing but `abi_major` and `abi_minor`. */
INFENG_EXPORT infeng_status infeng_library(const infeng_host* host, infeng_library_desc* out);
typedef infeng_status (*infeng_library_fn)(const infeng_host* host, infeng_library_desc* out);

/* FETCH, an infeng_fetch, extends the args of a linear by memory that a later op of the step reads from start to end. A
 * kernel may prefetch it into the L2 cache while it streams its weight. Each worker prefetches its share of all ranges,
 * taken as one, because tiles of later ops are dealt out in the same order. */
enum { INFENG_EXTENSION_FETCH = 1, INFENG_EXTENSION_WEIGHT = 2 };

typedef struct infeng_range {
  const void* data;
  int64_t bytes;
} infeng_range;

typedef struct infeng_fetch {
  infeng_extension head;
  const infeng_range* ranges;
  int64_t count;
} infeng_fetch;

/* WEIGHT, an infeng_bound_weight, extends the problem of `create` by the op's weight in the layout that calls get,
 * which stays where it is as long as the instance. A call with an adapter that replaces the weight gets another one. */
typedef struct infeng_bound_weight {
  infeng_extension head;
  const infeng_weight* weight;
} infeng_bound_weight;

/* DEVICE, an infeng_device, extends the description of a library whose kernels compute on a device with memory of its
 * own. All kernels of a program are then the library's. Data (of tensors, weights, caches and all arrays of numbers
 * that args or segments point to) is memory of the device; structs and arrays of structs are the host's, and kernels,
 * all of them WHOLE, read them in `run` only. `run` may queue its work, which begins after all that was queued before.
 * The functions may be called on any thread. */
#define INFENG_EXTENSION_DEVICE 0x80000003u /* 3, with REQUIRED */
enum { INFENG_COPY_TO_DEVICE = 1, INFENG_COPY_TO_HOST = 2, INFENG_COPY_ON_DEVICE = 3 };

typedef struct infeng_device {
  infeng_extension head;
  /* Writes the device's name, such as "NVIDIA H200", and returns INFENG_OK; or why the machine has none. */
  infeng_status (*describe)(char* text, int32_t size);
  /* Zeroed memory, aligned to 256 bytes; INFENG_OUT_OF_RANGE if there is not enough. */
  infeng_status (*allocate)(int64_t bytes, void** out, infeng_worker* worker);
  void (*release)(void* memory); /* may wait for what is queued */
  /* Copies after all that was queued before; returns once `from` may change and the host can read `to`. */
  infeng_status (*copy)(void* to, const void* from, int64_t bytes, int32_t direction, infeng_worker* worker);
  infeng_status (*wait)(infeng_worker* worker); /* until all that was queued is done; returns its first error */
  infeng_status (*memory)(int64_t* free_bytes, int64_t* total_bytes);
} infeng_device;

#ifdef __cplusplus
}
#endif
#endif /* INFENG_ABI_H */
