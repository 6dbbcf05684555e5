/* What the bundle of a rehearsal has in the place of kernels. */
#ifndef CODEGEN_EMIT_EMU_H
#define CODEGEN_EMIT_EMU_H

#include "codegen/sched.h"

/* The same model with parameters of a few elements, so that any number of ranks fits into one machine. */
Spec emu_small_spec(const Spec *);

/* Durations of ops, sizes and latencies of messages, rates of ports: a MoeEmu named `emu` and what it points at. */
void emit_emu_tables(Arena *, const Spec *, const Plan *, const Schedule *, FILE *);

#endif
