/* The epilogue list, applied to a block of the current matrix. SPDX-License-Identifier: Apache-2.0 */
#ifndef INFENG_REFERENCE_EPILOGUE_H
#define INFENG_REFERENCE_EPILOGUE_H

#include "common.h"

#define BLOCK_ROWS 16
#define BLOCK_COLUMNS (2 * WIDEST_GROUP) /* after GATED_MUL half of them remain, one widest group */

#define ALL_EPILOGUES                                                                               \
  (INFENG_EPILOGUE_BIT(INFENG_EPILOGUE_BIAS) | INFENG_EPILOGUE_BIT(INFENG_EPILOGUE_LORA) |          \
   INFENG_EPILOGUE_BIT(INFENG_EPILOGUE_ROW_SCALE) | INFENG_EPILOGUE_BIT(INFENG_EPILOGUE_RESIDUAL) | \
   INFENG_EPILOGUE_BIT(INFENG_EPILOGUE_GATED_MUL) | INFENG_EPILOGUE_BIT(INFENG_EPILOGUE_QUANTIZE) | \
   INFENG_EPILOGUE_BIT(INFENG_EPILOGUE_SCALE) | INFENG_EPILOGUE_BIT(INFENG_EPILOGUE_SOFTCAP) |      \
   INFENG_EPILOGUE_BIT(INFENG_EPILOGUE_ACTIVATE) | INFENG_EPILOGUE_BIT(INFENG_EPILOGUE_MUL))
#define FUNCTION(name) INFENG_NEED_BIT(INFENG_NEED_FUNCTION(INFENG_FUNCTION_##name))
#define HANDLES_LIST                                                                                      \
  (NEED(LORA_F32) | NEED(LORA_BF16) | NEED(LORA_I8) | NEED(LORA_I8T4) | FUNCTION(SILU) | FUNCTION(GELU) | \
   FUNCTION(GELU_TANH) | FUNCTION(RELU2) | FUNCTION(SIGMOID) | FUNCTION(SWIGLU) | FUNCTION(WIDE))

/* Rows [row, row + rows) and columns [column, column + width) of the current matrix. */
typedef struct block {
  int64_t row;
  int64_t rows;
  int64_t column;
  int64_t width;
  float* kept; /* the only row, from its first column on, for steps that quantize whole rows; else NULL */
  float cur[BLOCK_ROWS][BLOCK_COLUMNS];
} block;

/* Applies the list, then writes the result to `out` if it has data. */
void reference_finish_block(const infeng_args* args, const infeng_tensor* out, block* b);

/* Checks a list, once per call: at most one GATED_MUL, known kinds and functions. */
infeng_status reference_check_list(const infeng_args* args, infeng_worker* worker);

/* Columns of cur in one tile, so that each tile owns whole groups that it quantizes. */
int64_t reference_tile_columns(const infeng_args* args);

#endif
