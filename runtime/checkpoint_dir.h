/* The folder that a run saves into: checkpoints step-000100, half ones step-000100.tmp, and step-000100.damaged, which
   nobody reads. */
#ifndef MOE_CHECKPOINT_DIR_H
#define MOE_CHECKPOINT_DIR_H

#include <stdbool.h>
#include <stdint.h>

#include "runtime/moe_status.h"

/* "DIR/step-000100" and a suffix; malloc'd, NULL: out of memory. */
char *moe_ck_path(const char *dir, int64_t step, const char *suffix);

/* Steps of the whole checkpoints in a folder, ascending. *steps_p is malloc'd. Of a folder that has other entries
   only, hidden ones not counted, *other_p, if not NULL, gets the name of one; malloc'd too. */
MoeStatus moe_ck_steps(const char *dir, int64_t **steps_p, int32_t *n_p, char **other_p);

/* Whether a checkpoint lies in a folder, by whatever paths. */
bool moe_ck_lies_in(const char *checkpoint, const char *dir);

/* Makes ready a folder to save into: creates it where it is missing, locks it for the life of this process and its
   children (*lock_p, a descriptor), and removes half checkpoints. Refuses a folder with other things only, and one
   with the checkpoints of another run: only the run that goes on from `resumed` (a checkpoint in it, or NULL) may add
   to it, and only behind its step; if the newest good one was asked for (`newest`), later ones are damaged and are
   renamed. */
MoeStatus moe_ck_prepare(const char *dir, const char *resumed, int64_t step, bool newest, int *lock_p);

/* Gives a folder that is complete its name: syncs it, renames it, syncs `dir`. */
MoeStatus moe_ck_publish(const char *dir, int64_t step);

/* Removes the oldest checkpoints up to `step` so that `keep` of them are left. What cannot be removed is only told. */
void moe_ck_trim(const char *dir, int64_t step, int64_t keep);

#endif
