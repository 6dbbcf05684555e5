/* Kinds of damage that can be done to a schedule at one of its rows. */
#ifndef TESTS_SCHED_DAMAGE_H
#define TESTS_SCHED_DAMAGE_H

#include "tests/sched/mkplan.h"

typedef struct Case {
  const char *name;
  MkPlan mk;
  Arena *arena;
  FILE *sink;
  Spec spec;
  Plan plan;
  Schedule good;
} Case;

/* Each returns false where this damage cannot be done to this row; the schedule is a copy of the case's good one. */
typedef bool Damage(const Case *, Schedule *, int g, int at);

typedef struct DamageKind {
  const char *name;
  Damage *damage;
  int wait;   /* the wait it takes away, or -1 */
  bool times; /* it is done to the modelled times */
} DamageKind;

extern const DamageKind damages[];
extern const int n_damages;

/* All times become 0, which agrees with every order: what is wrong with a schedule is then not seen by its times. */
void damage_forget_times(Schedule *);

/* With room for one more row in each table. */
Schedule damage_copy(Arena *, const Schedule *);

#endif
