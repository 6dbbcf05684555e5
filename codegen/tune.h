/* Tuning: measured step times correct the planner. Its plan is the seed; plans within a few moves of it are tried in
   the order of what they promise, each as a program that really runs; the fastest measured one wins. */
#ifndef CODEGEN_TUNE_H
#define CODEGEN_TUNE_H

#include "codegen/bundle.h"
#include "codegen/evaluate.h"

enum { TUNE_FEATURES = 12, TUNE_MOVES = 32, TUNE_UNMEASURED_STEPS = 2 };

/* How long a step keeps the busiest group of each role set and the busiest port busy. */
enum { TUNE_ROLES = PLAN_A | PLAN_F };
typedef struct TuneLoad {
  double att[TUNE_ROLES], ffn[TUNE_ROLES]; /* ns of ops of each kind, by role - 1 */
  double net;
} TuneLoad;

/* A plan that may be tried. */
typedef struct TuneCandidate {
  PlanSpec asked;                         /* pins that led to it; what they leave open the planner has chosen */
  PlanSpec pins;                          /* all that was chosen, as pins: they give the same plan again */
  bool on_nics;                           /* a replica spans nodes */
  int moves;                              /* from the plan whose neighbourhood was looked at last; -1: out of it */
  struct TuneCandidate *near[TUNE_MOVES]; /* one move away, once they are known */
  int n_near;
  bool expanded;       /* they are */
  double estimate_ns;  /* the planner's own */
  double predicted_ns; /* simulated; 0: not yet */
  bool refused;        /* it cannot be scheduled or built */
  TuneLoad load;
  double at[TUNE_FEATURES]; /* place among the others: logarithms of counts, a distance of 1 is a doubling */
  int trial;                /* index of its trial; -1: none */
} TuneCandidate;

typedef struct TuneTrial {
  const TuneCandidate *what;
  double measured_ns; /* per step, a median; 0: it failed */
  int steps;          /* measured */
  const char *reason; /* why it failed, else NULL */
} TuneTrial;

typedef struct TuneOptions {
  SystemKind system; /* SYSTEM_AUTO: the seed is the fastest in simulation, every other system's plan a neighbour */
  int trials, radius, steps;
  bool emu;           /* target of the trials */
  const char *home;   /* as for emit_bundle() */
  const char *launch; /* shell command with {bundle}, {log}, {spec} and {steps}; NULL: the trial's own program */
  const char *work;   /* folder of the trials, kept; NULL: a temporary one */
  BuildOptions build; /* `out` is not looked at */
  /* Before a trial runs (reason and measured_ns unset) and after it; may be NULL. */
  void (*report)(void *context, int number, const TuneTrial *, bool over);
  void *context;
} TuneOptions;

typedef struct TuneResult {
  TuneTrial *trials; /* in the order they ran; the first is the seed */
  int n_trials;
  int best;     /* index, the seed's where none is faster in three decimals; -1 if all failed */
  int ended_by; /* the signal that ended the search early, 0: none */
} TuneResult;

/* Tunes the spec's first shape. Returns 0, or an exit code after an error: 3 if no plan fits, 1 for everything else,
   such as a folder that cannot be made. A trial that fails is no error. */
int tune_search(Arena *, Diag *, const Spec *, const TuneOptions *, TuneResult *);

/* The spec with a candidate's pins: text that moec reads back. */
void tune_print_spec(const Spec *, const TuneCandidate *, const char *comment, FILE *);
/* Its plan block alone. */
void tune_print_pins(const Spec *, const TuneCandidate *, FILE *);
/* "attention 2 x 1, FFN 2 x 1, 4 in flight" */
const char *tune_text(Arena *, const TuneCandidate *);

/* ---- between the files of the tuner ---- */

/* Candidates known so far; those of an equal plan are one. */
typedef struct TunePool {
  Arena *arena;
  const Spec *spec;
  bool cpu; /* kernels must be there */
  TuneCandidate **list;
  int n, room;
} TunePool;

/* The candidate that a plan is, added if it is new; NULL if pins do not give the plan again. */
TuneCandidate *tune_add(TunePool *, const PlanSpec *asked, const Plan *);
/* Adds everything within `radius` moves of a candidate and says so in `moves`. */
void tune_neighbours(TunePool *, TuneCandidate *, int radius);
/* Fills predicted_ns or refused. */
void tune_predict(TunePool *, TuneCandidate *);

TuneLoad tune_load(Arena *, const Spec *, const Plan *);

/* What trials so far say about all plans. */
typedef struct TuneBelief TuneBelief;
TuneBelief *tune_belief(Arena *, int trials);
void tune_learn(TuneBelief *, const TuneTrial *);
/* Logarithm of a plan's step over its prediction, and by how much that may be off. */
void tune_guess(const TuneBelief *, const TuneCandidate *, double *mean, double *spread);

/* Runs a candidate in folder `work`/trial-N. False if there was no running it at all, after an error; *ended_by: a
   signal caught or, as the terminal's interrupt does, one that ended the trial, 0: none. */
bool tune_trial(Arena *, Diag *, const Spec *, const TuneOptions *, const char *work, int number, TuneTrial *,
                int *ended_by);
/* From now on SIGINT, SIGQUIT, SIGTERM and SIGHUP go to the trial that runs and are kept for tune_caught(): the folder
   of the trials must go before the process does. */
void tune_catch_signals(void);
void tune_release_signals(void);
int tune_caught(void);
bool tune_make_work(Arena *, Diag *, const TuneOptions *, const char **work);

#endif
