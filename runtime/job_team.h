/* What a job of several processes asks of each besides its own ranks. */
#ifndef MOE_JOB_TEAM_H
#define MOE_JOB_TEAM_H

#include "runtime/run.h"

/* This process's place, and that the options can do with it. All but the first process are quiet from then on. */
MoeStatus moe_job_seat(MoeSeat *, const MoeOptions *, const MoeBundle *);

/* Meets the others, if there are any: then run->team is `team`. */
MoeStatus moe_job_meet(MoeRun *, MoeTeam *team);

/* Takes leave of them; they hear of a failure (code other than 0) that they have not yet heard of. */
void moe_job_part(MoeRun *, int code);

/* Whether the tokens of each expert are counted. Where --log-experts asks for it in vain, a note says why. */
bool moe_job_counts(const MoeRun *);

#endif
