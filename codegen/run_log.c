#include "codegen/run_log.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "codegen/output.h"

enum { MOST_LINES = 100000000, MOST_CELLS = 1 << 24 };

typedef struct Reader {
  Arena *arena;
  Diag *diag;
  const char *path;
  int line;
  RunLog *log;
  int room_steps, room_evals;
} Reader;

static bool wrong(Reader *r, const char *what)
{
  diag_error(r->diag, (Span){0}, "%s:%d: %s", r->path, r->line, what);
  return false;
}

/* A number of the row; null or no such key is NaN. */
static double number(const json_t *row, const char *key)
{
  const json_t *value = json_object_get(row, key);
  return json_is_number(value) ? json_number_value(value) : (double)NAN;
}

/* Numbers of [layers][experts], into `cells` if it is not NULL; NULL after an error. */
static double *read_cells(Reader *r, const json_t *rows, const char *key, int layers, int experts, double *cells)
{
  cells = cells ? cells : arena_new_array(r->arena, double, (size_t)layers *(size_t)experts + 1);
  for (int l = 0; l < layers; l++) {
    const json_t *row = json_array_get(rows, (size_t)l);
    for (int e = 0; e < experts; e++) {
      const json_t *value = json_array_get(row, (size_t)e);
      if ((int)json_array_size(row) != experts || !json_is_integer(value) || json_integer_value(value) < 0) {
        wrong(r,
              arena_printf(r->arena, "\"%s\" is not a list of %d numbers for each of %d layers", key, experts, layers));
        return NULL;
      }
      cells[(size_t)l * (size_t)experts + (size_t)e] = (double)json_integer_value(value);
    }
  }
  return cells;
}

static bool read_load(Reader *r, const json_t *row, int64_t step)
{
  const json_t *rows = json_object_get(row, "load"), *dropped = json_object_get(row, "load_dropped");
  LogLoad load = {.step = step}, *before = &r->log->load;
  size_t layers = json_array_size(rows), experts = json_array_size(json_array_get(rows, 0));
  if (!rows) {
    return true;
  }
  if (layers == 0 || experts == 0 || layers > MOST_CELLS / experts) {
    return wrong(r, "\"load\" is no list of lists of numbers");
  }
  load.layers = (int)layers;
  load.experts = (int)experts;
  bool alike = load.layers == before->layers && load.experts == before->experts; /* only the last is kept */
  load.tokens = read_cells(r, rows, "load", load.layers, load.experts, alike ? before->tokens : NULL);
  load.dropped = dropped && load.tokens
                     ? read_cells(r, dropped, "load_dropped", load.layers, load.experts, alike ? before->dropped : NULL)
                     : NULL;
  r->log->load = load;
  return load.tokens && (!dropped || load.dropped);
}

static bool read_row(Reader *r, const json_t *row)
{
  RunLog *log = r->log;
  const json_t *number_of = json_object_get(row, "step");
  if (!json_is_object(row) || !json_is_integer(number_of) || json_integer_value(number_of) < 1) {
    return wrong(r, "a line of a log of `train --log` is an object with a \"step\" from 1");
  }
  int64_t step = json_integer_value(number_of);
  if (json_object_get(row, "eval_loss")) {
    while (log->n_evals > 0 && log->evals[log->n_evals - 1].step >= step) {
      log->n_evals--;
    }
    log->evals = arena_grow(r->arena, log->evals, log->n_evals, &r->room_evals, sizeof *log->evals);
    log->evals[log->n_evals++] = (LogEval){step, number(row, "eval_loss")};
    return true;
  }
  LogStep s = {.step = step,
               .loss = number(row, "loss"),
               .balance = number(row, "balance_loss"),
               .grad = number(row, "grad_norm"),
               .lr = number(row, "lr"),
               .rate = number(row, "tokens_per_s"),
               .ms = number(row, "step_ms"),
               .dropped = number(row, "dropped"),
               .fullest = number(row, "fullest_expert")};
  if (isnan(s.ms) && json_object_get(row, "executed_ms")) {
    s.ms = number(row, "executed_ms");
    log->rehearsal = true;
  }
  if (!(s.ms >= 0)) {
    return wrong(r, "it has neither \"step_ms\" nor \"eval_loss\": not a log of `train --log`");
  }
  while (log->n_steps > 0 && log->steps[log->n_steps - 1].step >= step) {
    log->n_steps--;
  }
  while (log->n_evals > 0 && log->evals[log->n_evals - 1].step >= step) {
    log->n_evals--;
  }
  log->steps = arena_grow(r->arena, log->steps, log->n_steps, &r->room_steps, sizeof *log->steps);
  log->steps[log->n_steps++] = s;
  return read_load(r, row, step);
}

static bool read_lines(Reader *r, FILE *in)
{
  char *line = NULL;
  size_t room = 0;
  ssize_t n;
  bool ok = true;
  while (ok && (n = getline(&line, &room, in)) >= 0) {
    json_error_t error;
    r->line++;
    if (r->line > MOST_LINES) {
      ok = wrong(r, "more lines than can be read");
    } else if (line[strspn(line, " \t\r\n")] != '\0') {
      json_t *row = json_loadb(line, (size_t)n, 0, &error);
      if (!row && line[n - 1] != '\n') {
        diag_warn(r->diag, (Span){0}, "%s:%d: the last line is cut off; it is left out", r->path, r->line);
      } else {
        ok = row ? read_row(r, row) : wrong(r, arena_printf(r->arena, "not JSON: %s", error.text));
      }
      json_decref(row);
    }
  }
  free(line);
  return ok;
}

bool run_log_read(Arena *arena, Diag *diag, const char *path, RunLog *log)
{
  Reader r = {.arena = arena, .diag = diag, .path = path, .log = log};
  *log = (RunLog){0};
  struct stat st;
  FILE *in = stat(path, &st) == 0 && S_ISDIR(st.st_mode) ? NULL : fopen(path, "rb");
  if (!in) {
    return output_fail(diag, "read", path);
  }
  bool ok = read_lines(&r, in);
  ok = ok && (!ferror(in) || output_fail(diag, "read", path));
  fclose(in);
  if (ok && log->n_steps == 0) {
    diag_error(diag, (Span){0}, "%s has no step: nothing to report", path);
    return false;
  }
  return ok;
}
