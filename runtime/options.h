/* Command line of `train`. */
#ifndef MOE_OPTIONS_H
#define MOE_OPTIONS_H

#include <jansson.h>

#include "runtime/boot.h"
#include "runtime/data.h"
#include "runtime/exec.h"

/* So many steps in a row on one shape. */
typedef struct MoeTurn {
  int32_t shape;
  int64_t steps;
} MoeTurn;

enum { MOE_MAX_TURNS = 64, MOE_MAX_OPTIONS = 64 };

typedef struct MoeOptions {
  int64_t steps; /* -1: the bundle's learning-rate schedule, or 100 */
  const char *data;
  MoeFormat format;
  double holdout;
  int64_t mask_token; /* MOE_NO_TOKEN: none */
  int64_t mask_after;
  int64_t eval_every;
  const char *log;
  const char *metrics;
  int64_t log_experts;
  const char *trace;
  int64_t trace_step; /* from 1 */
  const char *save;   /* folder of checkpoints */
  int64_t save_every; /* 0: only after the last step */
  int64_t keep_last;  /* 0: all */
  const char *resume;
  const char *dump_grads;
  const char *dump_logits;
  const char *dump_weights;
  const char *dump_batch;
  const char *init;
  const char *save_hf;
  int64_t shard_bytes;
  uint64_t seed;
  double link; /* bytes per second; 0: not paced */
  double timeout_s;
  MoeBootFlags boot; /* place in a job of several processes */
  const char *token_file;
  double join_timeout_s;
  const char *shape; /* --shape and --shapes as given */
  const char *shapes;
  MoeTurn turns[MOE_MAX_TURNS]; /* taken in a cycle */
  int32_t n_turns;
  bool plan;
  bool memory;
  bool help;
  const char *given[MOE_MAX_OPTIONS]; /* values as given, by row of the table; NULL: not given */
  MoeExecOptions exec;
} MoeOptions;

/* Reads arguments and the MOE_* test variables. Prints one line and fails if any is wrong. */
MoeStatus moe_options_parse(MoeOptions *, const MoeBundle *, int argc, char **argv);
void moe_options_help(void);

/* No option names a file to write to that is read: one of the data, or one in the folder of another option. */
MoeStatus moe_options_spare_data(const MoeOptions *, const MoeData *);
MoeStatus moe_options_spare_folder(const MoeOptions *, const char *option, const char *folder);

/* Removes what killed runs have left of the files and the folder that are to be written. */
void moe_options_sweep(const MoeOptions *);

/* What a checkpoint keeps of the options: an object of those that were given, as they were. And back: those that are
   not given now are taken from there, which is told, as is another value. path: for messages. */
json_t *moe_options_kept(const MoeOptions *);
MoeStatus moe_options_resume(MoeOptions *, const json_t *kept, const char *path);

/* Whether the run goes on from the folder that it saves into, so that it may also be the first one there. */
bool moe_options_restarts(const MoeOptions *);

/* Of what was given, but for what may differ between the processes of a job. */
uint64_t moe_options_digest(const MoeOptions *);

/* Whether something of one step is to be written. */
bool moe_options_of_step(const MoeOptions *);

/* Whether an option was given, by its name without dashes. */
bool moe_options_given(const MoeOptions *, const char *name);

/* Shape of the step with index t, from 0. */
int32_t moe_options_turn(const MoeOptions *, int64_t t);

/* How many steps with an index below `end` have this shape. */
int64_t moe_options_steps_of(const MoeOptions *, int32_t shape, int64_t end);

/* Parts of moe_options_parse(): a whole number of digits only; --shape and --shapes. */
bool moe_parse_count(const char *text, int64_t *value);
MoeStatus moe_options_parse_turns(MoeOptions *, const MoeBundle *);

/* "100MB/s", "1Gbit/s", "2.5GiB/s"; bytes per second, or 0 if it is not a rate. */
double moe_parse_rate(const char *text);

#endif
