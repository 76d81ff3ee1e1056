/* The op EPILOGUE in plain C11, exact: the steps that another kernel did not take into itself. A tile is a whole row,
 * so that the kernel also quantizes whole rows. SPDX-License-Identifier: Apache-2.0 */
#include <infeng/c/epilogue.h>

static int32_t accepts(const infeng_problem* problem) {
  return problem->op == INFENG_OP_EPILOGUE && infeng_fuses(problem, INFENG_C_FUSES);
}

static int64_t tiles(const infeng_args* args, int32_t phase) {
  (void)phase;
  return args->rows;
}

/* Columns are read and written from left to right, so `out` may be `in`, also where a gate halves the row. */
INFENG_C_CLONED static infeng_status run(const infeng_args* common, int32_t phase, int64_t first, int64_t last,
                                         infeng_worker* worker) {
  (void)phase;
  const infeng_epilogue_args* args = (const infeng_epilogue_args*)common;
  const int64_t columns = args->in.shape[1];
  float* kept = (float*)worker->private_;
  const infeng_status status = infeng_check_list(common, worker);
  for (int64_t row = first; row < last && status == INFENG_OK; row++) {
    for (int64_t column = 0; column < columns; column += INFENG_C_MOST_COLUMNS) {
      const int64_t width = infeng_min(INFENG_C_MOST_COLUMNS, columns - column);
      float cur[INFENG_C_MOST_COLUMNS] = {0}; /* the columns behind the last are zeros */
      memcpy(cur, infeng_f32_row(&args->in, row) + column, (size_t)width * sizeof *cur);
      infeng_finish(common, &args->out, row, column, (width + 15) / 16 * 16, cur, kept);
    }
    infeng_finish_whole_row(common, row, columns / infeng_halves(common), columns, kept);
  }
  return status;
}

const infeng_kernel example_epilogue = {.struct_size = sizeof(infeng_kernel),
                                        .op = INFENG_OP_EPILOGUE,
                                        .name = "epilogue_c",
                                        .features = "",
                                        .numerics = INFENG_NUMERICS_EXACT,
                                        .kind = INFENG_KIND_TILES,
                                        .fuses = INFENG_C_FUSES,
                                        .handles = INFENG_C_HANDLES_ROWS,
                                        .accepts = accepts,
                                        .workspace = infeng_row_workspace,
                                        .tiles = tiles,
                                        .run = run};
