/* Options are rows of one table; parsing and help both come from it. */
#include "runtime/options.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/log.h"
#include "runtime/moe_link.h"

typedef enum Kind { FLAG, COUNT, SEED, NUMBER, TEXT, FOLDER, WORD, FORMAT, TOKEN, RATE } Kind; /* TEXT: a file */

/* What becomes of it when a run goes on from a checkpoint. */
typedef enum Resumed {
  FREE, /* it may be another */
  KEPT, /* the checkpoint's holds unless it is given again; another one is told */
  OWN   /* the checkpoint keeps it in a way of its own */
} Resumed;

enum {
  OUT = 1,  /* a file that is written */
  STEP = 2, /* of a step that is run */
  REAL = 4, /* not for rehearsals, which have neither kernels nor data */
  JOB = 8   /* may differ between the processes of a job */
};

#define FORMATS "bytes, uint16, uint32, llmc or indexed"

static const struct {
  const char *name;
  const char *arg;
  Kind kind;
  size_t offset;
  double least; /* of COUNT and NUMBER */
  double most;
  Resumed resumed;
  int use;
  const char *doc;
} rows[] = {
    {"steps", "N", COUNT, offsetof(MoeOptions, steps), 0, 1e15, FREE, 0,
     "steps to train (default: the lr schedule's, else 100)"},
    {"shape", "NAME", WORD, offsetof(MoeOptions, shape), 0, 0, OWN, 0,
     "train on this shape alone (default: the program's first)"},
    {"shapes", "A:N,B:M", WORD, offsetof(MoeOptions, shapes), 0, 0, OWN, 0,
     "N steps on shape A, then M on shape B, and over again"},
    {"data", "FILE", TEXT, offsetof(MoeOptions, data), 0, 0, OWN, REAL,
     "tokens to train on: a file, a 'pattern*', PREFIX of a .bin with its .idx, or 0.7:ONE,0.3:TWO"},
    {"format", "F", FORMAT, offsetof(MoeOptions, format), 0, 0, KEPT, REAL,
     "of the data: " FORMATS " (default: as the files say; text is bytes)"},
    {"mask-token", "ID", TOKEN, offsetof(MoeOptions, mask_token), 0, 0, KEPT, REAL,
     "labels with this id do not count, such as -100 or the id of padding"},
    {"mask-after", "ID", TOKEN, offsetof(MoeOptions, mask_after), 0, 0, KEPT, REAL,
     "labels that follow this id do not count, such as that of the end of a document"},
    {"holdout", "X", NUMBER, offsetof(MoeOptions, holdout), 0, 0.9, KEPT, REAL,
     "last part of the data, for evaluation (default 0.1)"},
    {"eval-every", "N", COUNT, offsetof(MoeOptions, eval_every), 1, 1e15, FREE, REAL,
     "evaluate every N steps, not only at the end"},
    {"log", "FILE", TEXT, offsetof(MoeOptions, log), 0, 0, FREE, OUT, "write one JSON object per step"},
    {"log-experts", "N", COUNT, offsetof(MoeOptions, log_experts), 1, 1e15, FREE, REAL,
     "with --log: also how many tokens every expert got, every N steps"},
    {"metrics", "FILE", TEXT, offsetof(MoeOptions, metrics), 0, 0, FREE, OUT | REAL,
     "keep the present state here, in Prometheus's text format"},
    {"trace", "FILE", TEXT, offsetof(MoeOptions, trace), 0, 0, FREE, OUT | STEP,
     "write a step's ops as Chrome trace events"},
    {"trace-step", "N", COUNT, offsetof(MoeOptions, trace_step), 1, 1e15, FREE, 0, "which step (default: the last)"},
    {"save", "DIR", FOLDER, offsetof(MoeOptions, save), 0, 0, FREE, REAL,
     "write checkpoints into this folder, DIR/step-000100"},
    {"save-every", "N", COUNT, offsetof(MoeOptions, save_every), 1, 1e15, FREE, REAL,
     "save every N steps, not only at the end"},
    {"keep-last", "N", COUNT, offsetof(MoeOptions, keep_last), 1, 1e15, FREE, REAL,
     "keep only the N newest (default: all)"},
    {"resume", "DIR", FOLDER, offsetof(MoeOptions, resume), 0, 0, FREE, REAL,
     "go on from a checkpoint, or from the newest good one of a folder"},
    {"dump-grads", "FILE", TEXT, offsetof(MoeOptions, dump_grads), 0, 0, FREE, OUT | STEP | REAL,
     "the last step's gradients, as safetensors"},
    {"dump-logits", "FILE", TEXT, offsetof(MoeOptions, dump_logits), 0, 0, FREE, OUT | STEP | REAL,
     "the last step's logits, as safetensors, [sequences, seq, vocab]"},
    {"dump-weights", "FILE", TEXT, offsetof(MoeOptions, dump_weights), 0, 0, FREE, OUT | REAL,
     "weights after the last step"},
    {"dump-batch", "FILE", TEXT, offsetof(MoeOptions, dump_batch), 0, 0, FREE, OUT | STEP | REAL,
     "the last step's tokens, int32 [sequences, seq + 1]"},
    {"init", "DIR|FILE", TEXT, offsetof(MoeOptions, init), 0, 0, FREE, REAL,
     "begin with these weights: safetensors as Hugging Face has them"},
    {"save-hf", "DIR", TEXT, offsetof(MoeOptions, save_hf), 0, 0, FREE, REAL,
     "after the last step, write a folder that Hugging Face's Transformers load"},
    {"shard-bytes", "N", COUNT, offsetof(MoeOptions, shard_bytes), 1, 1e18, FREE, REAL,
     "largest safetensors file of --save-hf (default 5000000000)"},
    {"seed", "N", SEED, offsetof(MoeOptions, seed), 0, 0, OWN, REAL, "of weights and data order (default: the spec's)"},
    {"link", "RATE", RATE, offsetof(MoeOptions, link), 0, 0, FREE, 0,
     "pace every rank's port, such as 100MB/s or 1Gbit/s"},
    {"compute-scale", "X", NUMBER, offsetof(MoeOptions, exec.compute_scale), 0, 1e6, FREE, 0,
     "stretch every op to X times its CPU time"},
    {"scale", "X", NUMBER, offsetof(MoeOptions, exec.scale), 1e-6, 1e9, FREE, 0,
     "rehearsals: real time per modelled time (default: what this machine can keep up with)"},
    {"timeout", "S", NUMBER, offsetof(MoeOptions, timeout_s), 1, 1e9, FREE, JOB,
     "seconds without any progress (default 300)"},
    {"rank", "R", COUNT, offsetof(MoeOptions, boot.rank), 0, 1e6, OWN, JOB,
     "this process runs rank R of a job of several (or MOE_RANK; launchers' variables say it too)"},
    {"world-size", "N", COUNT, offsetof(MoeOptions, boot.world_size), 1, 1e6, OWN, JOB,
     "ranks of that job (or MOE_WORLD_SIZE; default: the plan's)"},
    {"node", "I", COUNT, offsetof(MoeOptions, boot.node), 0, 1e6, OWN, JOB,
     "this process runs the ranks of host I (or MOE_NODE)"},
    {"nodes", "N", COUNT, offsetof(MoeOptions, boot.nodes), 1, 1e6, OWN, JOB,
     "of N hosts (or MOE_NODES); 1: all ranks here, whatever a launcher says"},
    {"meet", "HOST:PORT", WORD, offsetof(MoeOptions, boot.meet), 0, 0, OWN, JOB,
     "where rank 0 listens and the others come (or MOE_ADDRESS)"},
    {"token-file", "FILE", TEXT, offsetof(MoeOptions, token_file), 0, 0, OWN, JOB,
     "secret of a job on several hosts (or MOE_TOKEN_FILE, MOE_TOKEN)"},
    {"join-timeout", "S", NUMBER, offsetof(MoeOptions, join_timeout_s), 1, 1e6, OWN, JOB,
     "seconds that all processes have to come (default 120)"},
    {"plan", NULL, FLAG, offsetof(MoeOptions, plan), 0, 0, FREE, 0, "print groups, ranks and layers, and end"},
    {"memory", NULL, FLAG, offsetof(MoeOptions, memory), 0, 0, FREE, 0, "print every rank's memory by term, and end"},
    {"help", NULL, FLAG, offsetof(MoeOptions, help), 0, 0, FREE, 0, "print this, and end"},
};

enum { N_ROWS = sizeof rows / sizeof *rows };
static_assert((int)N_ROWS <= (int)MOE_MAX_OPTIONS, "MoeOptions.given has room for each");

double moe_parse_rate(const char *text)
{
  static const struct {
    const char *name;
    double bytes;
  } units[] = {
      {"B/s", 1},      {"kB/s", 1e3},   {"KB/s", 1e3},     {"MB/s", 1e6},     {"GB/s", 1e9},
      {"TB/s", 1e12},  {"KiB/s", 1024}, {"MiB/s", 0x1p20}, {"GiB/s", 0x1p30}, {"bit/s", 0.125},
      {"kbit/s", 125}, {"Kbit/s", 125}, {"Mbit/s", 125e3}, {"Gbit/s", 125e6}, {"Tbit/s", 125e9},
  };
  char *end;
  double value = strtod(text, &end);
  while (*end == ' ') {
    end++;
  }
  for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
    if (end != text && strcmp(end, units[i].name) == 0 && isfinite(value) && value > 0) {
      return value * units[i].bytes;
    }
  }
  return 0;
}

bool moe_parse_count(const char *text, int64_t *value)
{
  char *end;
  errno = 0;
  long long v = strtoll(text, &end, 10);
  if (errno != 0 || end == text || *end != '\0' || strspn(text, "0123456789") != strlen(text)) {
    return false;
  }
  *value = v;
  return true;
}

static bool parse_format(const char *text, MoeFormat *format)
{
  for (int i = MOE_FORMAT_AUTO + 1; i < MOE_N_FORMATS; i++) {
    if (strcmp(text, moe_format_names[i]) == 0) {
      *format = (MoeFormat)i;
      return true;
    }
  }
  return false;
}

static MoeStatus bad_value(int row, const char *value, const char *wanted)
{
  moe_error("--%s %s: %s", rows[row].name, value, wanted);
  return MOE_EINVAL;
}

static MoeStatus set(MoeOptions *o, int row, const char *value)
{
  char wanted[96];
  o->given[row] = value;
  void *field = (char *)o + rows[row].offset;
  switch (rows[row].kind) {
  case FLAG:
    *(bool *)field = true;
    return MOE_OK;
  case TEXT:
  case FOLDER:
    if (*value == '\0') {
      return bad_value(row, "''", rows[row].kind == TEXT ? "expected a file name" : "expected a folder");
    }
    *(const char **)field = value;
    return MOE_OK;
  case WORD:
    if (*value == '\0') {
      return bad_value(row, "''", rows[row].use == JOB ? "expected a place" : "expected names of shapes");
    }
    *(const char **)field = value;
    return MOE_OK;
  case COUNT: {
    int64_t v = 0;
    snprintf(wanted, sizeof wanted, "expected a whole number, at least %g", rows[row].least);
    if (!moe_parse_count(value, &v) || (double)v < rows[row].least || (double)v > rows[row].most) {
      return bad_value(row, value, wanted);
    }
    *(int64_t *)field = v;
    return MOE_OK;
  }
  case SEED: {
    char *end;
    errno = 0;
    uint64_t v = strtoull(value, &end, 10);
    if (errno != 0 || *value == '\0' || strspn(value, "0123456789") != strlen(value)) {
      return bad_value(row, value, "expected a whole number below 2^64");
    }
    *(uint64_t *)field = v;
    return MOE_OK;
  }
  case NUMBER: {
    char *end;
    double v = strtod(value, &end);
    snprintf(wanted, sizeof wanted, "expected a number from %g to %g", rows[row].least, rows[row].most);
    if (end == value || *end != '\0' || !(v >= rows[row].least && v <= rows[row].most)) {
      return bad_value(row, value, wanted);
    }
    *(double *)field = v;
    return MOE_OK;
  }
  case FORMAT:
    return parse_format(value, field) ? MOE_OK : bad_value(row, value, "expected " FORMATS);
  case TOKEN: {
    int64_t v = 0;
    bool negative = *value == '-';
    if (strcmp(value, "none") == 0) {
      *(int64_t *)field = MOE_NO_TOKEN;
      return MOE_OK;
    }
    if (!moe_parse_count(value + negative, &v) || v > INT32_MAX) {
      return bad_value(row, value, "expected a token id, a whole number of at most 31 bits, or none");
    }
    *(int64_t *)field = negative ? -v : v;
    return MOE_OK;
  }
  case RATE:
    *(double *)field = moe_parse_rate(value);
    return *(double *)field > 0 ? MOE_OK : bad_value(row, value, "expected a rate such as 100MB/s or 1Gbit/s");
  }
  return MOE_EINVAL;
}

/* Test switches. Their values are checked like options, since a typing error would silently test nothing. */
static MoeStatus read_environment(MoeExecOptions *exec)
{
  static const struct {
    const char *name;
    size_t offset;
  } flags[] = {
      {"MOE_POISON", offsetof(MoeExecOptions, poison)},
      {"MOE_TEST_SERIAL", offsetof(MoeExecOptions, serial)},
      {"MOE_TEST_SYNC_SEND", offsetof(MoeExecOptions, sync_send)},
  };
  for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
    const char *value = getenv(flags[i].name);
    if (value == NULL || *value == '\0') {
      continue;
    }
    if (strcmp(value, "0") != 0 && strcmp(value, "1") != 0) {
      moe_error("%s=%s: expected 0 or 1", flags[i].name, value);
      return MOE_EINVAL;
    }
    *(bool *)((char *)exec + flags[i].offset) = *value == '1';
  }
  const char *save_delay = getenv("MOE_TEST_SAVE_DELAY");
  if (save_delay != NULL && *save_delay != '\0' &&
      (!moe_parse_count(save_delay, &exec->save_delay_us) || exec->save_delay_us > 10000000)) {
    moe_error("MOE_TEST_SAVE_DELAY=%s: expected microseconds", save_delay);
    return MOE_EINVAL;
  }
  const char *delay = getenv("MOE_TEST_DELAY");
  if (delay != NULL && *delay != '\0') {
    char *end;
    unsigned long long seed = 1;
    unsigned long long us = strtoull(delay, &end, 10);
    bool ok = end != delay && us <= 10000000;
    if (ok && *end == ',') {
      const char *second = end + 1;
      seed = strtoull(second, &end, 10);
      ok = end != second;
    }
    if (!ok || *end != '\0') {
      moe_error("MOE_TEST_DELAY=%s: expected microseconds, or microseconds,seed", delay);
      return MOE_EINVAL;
    }
    exec->delay_us = (int64_t)us;
    exec->delay_seed = seed;
  }
  return MOE_OK;
}

static MoeStatus parse_one(MoeOptions *o, int argc, char **argv, int *i)
{
  const char *arg = argv[*i];
  const char *equals = strchr(arg, '=');
  size_t length = equals != NULL ? (size_t)(equals - arg) : strlen(arg);
  if (strcmp(arg, "-h") == 0) {
    o->help = true;
    return MOE_OK;
  }
  if (strncmp(arg, "--", 2) != 0) {
    moe_error("unexpected argument %s (try --help)", arg);
    return MOE_EINVAL;
  }
  for (int row = 0; row < N_ROWS; row++) {
    if (strlen(rows[row].name) != length - 2 || strncmp(rows[row].name, arg + 2, length - 2) != 0) {
      continue;
    }
    if (rows[row].kind == FLAG) {
      if (equals != NULL) {
        moe_error("--%s takes no value", rows[row].name);
        return MOE_EINVAL;
      }
      return set(o, row, "");
    }
    if (equals == NULL && *i + 1 >= argc) {
      moe_error("--%s needs a value (%s)", rows[row].name, rows[row].arg);
      return MOE_EINVAL;
    }
    return set(o, row, equals != NULL ? equals + 1 : argv[++*i]);
  }
  moe_error("unknown option %.*s (try --help)", (int)length, arg);
  return MOE_EINVAL;
}

static const char *path_of(const MoeOptions *o, int row)
{
  bool is_path = rows[row].kind == TEXT || rows[row].kind == FOLDER;
  return is_path ? *(const char *const *)((const char *)o + rows[row].offset) : NULL;
}

bool moe_options_restarts(const MoeOptions *o)
{
  return o->save != NULL && o->resume != NULL && moe_same_place(o->save, o->resume);
}

/* One file under two options would be cut off or replaced by the one while the other uses it. Of two folders of
   checkpoints that is what they are for. */
static MoeStatus check_files(const MoeOptions *o)
{
  for (int i = 0; i < N_ROWS; i++) {
    for (int j = 0; j < i; j++) {
      const char *a = path_of(o, i);
      const char *b = path_of(o, j);
      bool checkpoint = rows[i].kind == FOLDER || rows[j].kind == FOLDER;
      if (a == NULL || b == NULL || (rows[i].kind == FOLDER && rows[j].kind == FOLDER)) {
        continue;
      }
      if (moe_same_place(a, b)) {
        moe_error("--%s and --%s name the same %s, %s", rows[j].name, rows[i].name, checkpoint ? "folder" : "file", a);
        return MOE_EINVAL;
      }
    }
  }
  return MOE_OK;
}

MoeStatus moe_options_spare_data(const MoeOptions *o, const MoeData *data)
{
  for (int i = 0; i < N_ROWS; i++) {
    const char *path = rows[i].kind == TEXT ? *(const char *const *)((const char *)o + rows[i].offset) : NULL;
    if (path != NULL && path != o->data && moe_data_holds(data, path)) {
      moe_error("--data and --%s name the same file, %s", rows[i].name, path);
      return MOE_EINVAL;
    }
  }
  return MOE_OK;
}

MoeStatus moe_options_spare_folder(const MoeOptions *o, const char *option, const char *folder)
{
  for (int i = 0; i < N_ROWS; i++) {
    const char *path = (rows[i].use & OUT) != 0 ? path_of(o, i) : NULL;
    if (path != NULL && moe_folder_holds(folder, path)) {
      moe_error("--%s %s would replace a file of --%s %s", rows[i].name, path, option, folder);
      return MOE_EINVAL;
    }
  }
  return MOE_OK;
}

void moe_options_sweep(const MoeOptions *o)
{
  for (int i = 0; i < N_ROWS; i++) {
    const char *path = (rows[i].use & OUT) != 0 ? path_of(o, i) : NULL;
    if (path != NULL) {
      moe_file_sweep(path);
    }
  }
  if (o->save_hf != NULL) {
    moe_file_sweep(o->save_hf);
  }
}

json_t *moe_options_kept(const MoeOptions *o)
{
  json_t *kept = json_object();
  for (int i = 0; i < N_ROWS; i++) {
    if (rows[i].resumed == KEPT && o->given[i] != NULL) {
      json_object_set_new(kept, rows[i].name, json_string(o->given[i]));
    }
  }
  return kept;
}

MoeStatus moe_options_resume(MoeOptions *o, const json_t *kept, const char *path)
{
  for (int i = 0; i < N_ROWS; i++) {
    const char *was = json_string_value(json_object_get(kept, rows[i].name));
    if (rows[i].resumed != KEPT) {
      continue;
    }
    if (o->given[i] == NULL && was != NULL) {
      moe_note("--%s %s, as in %s", rows[i].name, was, path);
      MOE_TRY(set(o, i, was));
    } else if (o->given[i] != NULL && (was == NULL || strcmp(o->given[i], was) != 0)) {
      moe_note("--%s %s; %s was trained %s%s", rows[i].name, o->given[i], path, was != NULL ? "with " : "without it",
               was != NULL ? was : "");
    }
  }
  return MOE_OK;
}

bool moe_options_given(const MoeOptions *o, const char *name)
{
  bool given = false;
  for (int row = 0; row < N_ROWS; row++) {
    given = given || (strcmp(rows[row].name, name) == 0 && o->given[row] != NULL);
  }
  return given;
}

/* What has no meaning for a rehearsal, or only for one. */
static MoeStatus check_emu(const MoeOptions *o, const MoeBundle *b)
{
  for (int row = 0; b->emu != NULL && row < N_ROWS; row++) {
    if ((rows[row].use & REAL) != 0 && o->given[row] != NULL) {
      moe_error("--%s is not for target emu: it has no kernels and reads no data", rows[row].name);
      return MOE_EINVAL;
    }
  }
  const char *wrong = NULL;
  if (b->emu == NULL) {
    wrong = o->exec.scale > 0 ? "--scale is for bundles of target emu; this one computes" : NULL;
  } else if (o->link > 0 || o->exec.compute_scale > 0) {
    wrong = "--link and --compute-scale are not for target emu: its times are modelled";
  } else if (o->exec.serial) {
    wrong = "MOE_TEST_SERIAL is not for target emu";
  }
  if (wrong != NULL) {
    moe_error("%s", wrong);
    return MOE_EINVAL;
  }
  return MOE_OK;
}

uint64_t moe_options_digest(const MoeOptions *o)
{
  uint64_t h = 0xcbf29ce484222325u;
  for (int row = 0; row < N_ROWS; row++) {
    for (const char *c = o->given[row]; c != NULL && (rows[row].use & JOB) == 0; c = *c != '\0' ? c + 1 : NULL) {
      h = (h ^ (unsigned char)*c ^ (uint64_t)row << 8) * 0x100000001b3u;
    }
  }
  return h;
}

bool moe_options_of_step(const MoeOptions *o)
{
  bool any = false;
  for (int row = 0; row < N_ROWS; row++) {
    any = any || ((rows[row].use & STEP) != 0 && o->given[row] != NULL);
  }
  return any;
}

MoeStatus moe_options_parse(MoeOptions *o, const MoeBundle *b, int argc, char **argv)
{
  *o = (MoeOptions){.steps = -1,
                    .holdout = 0.1,
                    .mask_token = MOE_NO_TOKEN,
                    .mask_after = MOE_NO_TOKEN,
                    .shard_bytes = 5000000000,
                    .seed = b->seed,
                    .timeout_s = 300,
                    .join_timeout_s = 120,
                    .boot = {.rank = -1, .world_size = -1, .node = -1, .nodes = -1}};
  for (int i = 1; i < argc; i++) {
    MOE_TRY(parse_one(o, argc, argv, &i));
  }
  MOE_TRY(read_environment(&o->exec));
  if (o->steps < 0) {
    o->steps = b->emu != NULL ? 3 : b->lr_steps > 0 ? b->lr_steps : 100;
  }
  if (o->help || o->plan || o->memory) {
    return MOE_OK;
  }
  MOE_TRY(moe_options_parse_turns(o, b));
  MOE_TRY(check_emu(o, b));
  if (o->steps > 0 && o->data == NULL && b->emu == NULL) {
    moe_error("--data FILE is missing: what should it train on? (try --help)");
    return MOE_EINVAL;
  }
  if (o->steps == 0 && moe_options_of_step(o)) {
    moe_error("--steps 0 has no step whose gradients, logits, batch or trace could be written");
    return MOE_EINVAL;
  }
  if (o->resume != NULL && o->init != NULL && !moe_options_restarts(o)) {
    moe_error("--init and --resume say different things; choose one, or --resume from the folder of --save");
    return MOE_EINVAL;
  }
  if (o->log == NULL && o->log_experts > 0) {
    moe_error("--log-experts has no effect without --log FILE");
    return MOE_EINVAL;
  }
  if (o->save == NULL && (o->save_every > 0 || o->keep_last > 0)) {
    moe_error("--%s has no effect without --save DIR", o->save_every > 0 ? "save-every" : "keep-last");
    return MOE_EINVAL;
  }
  if (o->save_hf == NULL && moe_options_given(o, "shard-bytes")) {
    moe_error("--shard-bytes has no effect without --save-hf DIR");
    return MOE_EINVAL;
  }
  if (o->trace_step > o->steps) {
    moe_error("--trace-step %lld is after the last step, %lld", (long long)o->trace_step, (long long)o->steps);
    return MOE_EINVAL;
  }
  if (o->trace_step > 0 && o->trace == NULL) {
    moe_error("--trace-step has no effect without --trace FILE");
    return MOE_EINVAL;
  }
  o->trace_step = o->trace_step > 0 ? o->trace_step : o->steps;
  return check_files(o);
}

void moe_options_help(void)
{
  printf(
      "usage: train --data FILE [options]\n"
      "Trains the model this program was built for: with all ranks on this machine, or, started by torchrun, mpirun, "
      "srun\nor in Kubernetes, as a part of a job.\n\n");
  for (int row = 0; row < N_ROWS; row++) {
    char left[40];
    snprintf(left, sizeof left, "--%s %s", rows[row].name, rows[row].arg != NULL ? rows[row].arg : "");
    printf("  %-22s %s\n", left, rows[row].doc);
  }
}
