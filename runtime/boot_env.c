/* Launchers are asked in the order of boot_vars.def. What is half a set, or says two things, is refused rather than
   guessed at: a wrong guess is a job that hangs, or several jobs that each believe to be the whole. */
#include "runtime/boot.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/log.h"

enum { MOST = 1000000 };

typedef enum Launcher {
#define BOOT_LAUNCHER(id, name, unit, hint) id,
#define BOOT_VAR(launcher, field, use, variable)
#include "runtime/boot_vars.def"
#undef BOOT_LAUNCHER
#undef BOOT_VAR
  N_LAUNCHERS
} Launcher;

typedef enum Field {
  RANK,
  SIZE,
  LOCAL_RANK,
  LOCAL_SIZE,
  NODE,
  NODES,
  PER_NODE,
  ADDRESS,
  PORT,
  STORE,  /* True: somebody listens on PORT already */
  UNIQUE, /* differs from job to job */
  LIST,   /* Slurm's hosts and tasks of each */
  TASKS,
  N_FIELDS
} Field;

typedef enum Unit { BY_RANK, BY_NODE } Unit;

typedef enum Use { MARK, NEED, MAY } Use;

static const struct {
  const char *name;
  Unit unit;
  const char *hint;
} launchers[] = {
#define BOOT_LAUNCHER(id, name, unit, hint) {name, unit, hint},
#define BOOT_VAR(launcher, field, use, variable)
#include "runtime/boot_vars.def"
#undef BOOT_LAUNCHER
#undef BOOT_VAR
};

static const struct {
  Launcher launcher;
  Field field;
  Use use;
  const char *variable;
} rows[] = {
#define BOOT_LAUNCHER(id, name, unit, hint)
#define BOOT_VAR(launcher, field, use, variable) {launcher, field, use, variable},
#include "runtime/boot_vars.def"
#undef BOOT_LAUNCHER
#undef BOOT_VAR
};

enum { N_ROWS = sizeof rows / sizeof *rows };

typedef struct Var {
  const char *name; /* NULL: not set */
  const char *text;
  int32_t value; /* of a number; -1: not set */
} Var;

typedef struct Found {
  Launcher launcher;
  Var of[N_FIELDS];
} Found;

/* ---- variables ---- */

/* A variable that is set to something. */
static const char *variable(const char *name)
{
  const char *text = getenv(name);
  return text != NULL && *text != '\0' ? text : NULL;
}

/* Flags stand for variables of the same meaning, and say all if they say who this process is. */
static const char *value_of(const MoeBootFlags *flags, const char *name, char *text, size_t n)
{
  const struct {
    const char *name;
    int64_t flag;
  } own[] = {{"MOE_RANK", flags->rank},
             {"MOE_WORLD_SIZE", flags->world_size},
             {"MOE_NODE", flags->node},
             {"MOE_NODES", flags->nodes}};
  bool by_flags = flags->rank >= 0 || flags->node >= 0;
  for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
    if (strcmp(own[i].name, name) != 0) {
      continue;
    }
    if (own[i].flag >= 0) {
      snprintf(text, n, "%lld", (long long)own[i].flag);
      return text;
    }
    return by_flags && i % 2 == 0 ? NULL : variable(name); /* another who */
  }
  return variable(name);
}

static bool is_number(Field field)
{
  return field <= NODES;
}

static MoeStatus read_number(Var *v)
{
  char *end;
  long long value = strtoll(v->text, &end, 10);
  if (strspn(v->text, "0123456789") != strlen(v->text) || strlen(v->text) > 9 || value > MOST) {
    moe_error("%s=%s: expected a whole number of at most %d", v->name, v->text, MOST);
    return MOE_EINVAL;
  }
  v->value = (int32_t)value;
  return MOE_OK;
}

/* What is set of a launcher's row. texts: room for flags as text. Returns whether the launcher is there. */
static bool look(const MoeBootFlags *flags, Launcher launcher, Found *f, char texts[N_FIELDS][24])
{
  bool there = false;
  *f = (Found){.launcher = launcher};
  for (int i = 0; i < N_ROWS; i++) {
    if (rows[i].launcher != launcher) {
      continue;
    }
    Var *v = &f->of[rows[i].field];
    const char *text = value_of(flags, rows[i].variable, texts[rows[i].field], 24);
    if (v->name == NULL && text != NULL) {
      *v = (Var){.name = rows[i].variable, .text = text};
    }
    there = there || (rows[i].use == MARK && text != NULL);
  }
  return there;
}

static void add(char *list, size_t n, const char *name, const char *text)
{
  size_t used = strlen(list);
  snprintf(list + used, n - used, "%s%s%s%s", used > 0 ? ", " : "", name, text != NULL ? "=" : "",
           text != NULL ? text : "");
}

/* Every variable that must be there is. */
static MoeStatus check_whole(const Found *f)
{
  char set[400] = "", missing[200] = "";
  bool named[N_FIELDS] = {false};
  for (int i = 0; i < N_ROWS; i++) {
    Field field = rows[i].field;
    const Var *v = &f->of[field];
    if (rows[i].launcher != f->launcher || rows[i].use == MAY || named[field]) {
      continue;
    }
    named[field] = true;
    if (v->name != NULL) {
      add(set, sizeof set, v->name, v->text);
    } else {
      add(missing, sizeof missing, rows[i].variable, NULL);
    }
  }
  if (missing[0] != '\0') {
    moe_error("half of what %s sets: %s without %s; %s", launchers[f->launcher].name, set, missing,
              launchers[f->launcher].hint);
    return MOE_EINVAL;
  }
  return MOE_OK;
}

static MoeStatus read_numbers(Found *f)
{
  for (int i = 0; i < N_FIELDS; i++) {
    f->of[i].value = -1;
    if (f->of[i].name != NULL && is_number((Field)i)) {
      MOE_TRY(read_number(&f->of[i]));
    }
  }
  return MOE_OK;
}

static MoeStatus contradict(const char *a, const char *a_text, const char *b, const char *b_text)
{
  moe_error("%s=%s and %s=%s contradict each other", a, a_text, b, b_text);
  return MOE_EINVAL;
}

/* Both are set: the first is less than the second, or at most that. */
static MoeStatus check_order(const Found *f, Field less, Field more, bool equal)
{
  const Var *a = &f->of[less], *b = &f->of[more];
  if (a->name != NULL && b->name != NULL && (equal ? a->value > b->value : a->value >= b->value)) {
    return contradict(a->name, a->text, b->name, b->text);
  }
  return MOE_OK;
}

/* ---- which launcher ---- */

/* Old versions tell no step's size; SLURM_NTASKS is the step's only within a step. A batch script whose job has one
   task is alone. */
static MoeStatus look_at_slurm(Found *f, bool *there_p)
{
  const char *name = variable("SLURM_NTASKS") != NULL ? "SLURM_NTASKS" : "SLURM_NPROCS";
  const char *tasks = variable(name);
  if (f->of[SIZE].name != NULL) {
    return MOE_OK;
  }
  if (variable("SLURM_STEP_ID") != NULL && tasks != NULL) {
    f->of[SIZE] = (Var){.name = name, .text = tasks};
  } else if (tasks == NULL || strcmp(tasks, "1") == 0) {
    *there_p = false;
  } else {
    moe_error("half of what Slurm sets: SLURM_PROCID=%s, %s=%s without SLURM_STEP_NUM_TASKS; %s", f->of[RANK].text,
              name, tasks, launchers[SLURM].hint);
    return MOE_EINVAL;
  }
  return MOE_OK;
}

/* Tasks of this host, where the list is of the step. */
static MoeStatus count_slurm(Found *f)
{
  const Var *tasks = &f->of[TASKS], *list = &f->of[LIST];
  int32_t local = 0, total = 0;
  if (list->name != NULL && moe_slurm_hosts(list->text) < 0) {
    moe_error("%s=%s is not a list of hosts", list->name, list->text);
    return MOE_EINVAL;
  }
  if (tasks->name == NULL) {
    return MOE_OK;
  }
  int32_t hosts = moe_slurm_tasks(tasks->text, f->of[NODE].value, &local, &total);
  if (hosts < 0) {
    moe_error("%s=%s is not a list of task counts", tasks->name, tasks->text);
    return MOE_EINVAL;
  }
  bool of_step = strstr(tasks->name, "STEP") != NULL;
  if (of_step && total != f->of[SIZE].value) {
    return contradict(tasks->name, tasks->text, f->of[SIZE].name, f->of[SIZE].text);
  }
  if (of_step && list->name != NULL && strstr(list->name, "STEP") != NULL && hosts != moe_slurm_hosts(list->text)) {
    return contradict(tasks->name, tasks->text, list->name, list->text);
  }
  if (total == f->of[SIZE].value && local > 0) {
    f->of[LOCAL_SIZE] = (Var){.name = tasks->name, .text = tasks->text, .value = local};
  }
  return MOE_OK;
}

/* RANK and WORLD_SIZE that somebody else has set, as scripts for other programs do. */
static MoeStatus check_stray(const Found *f)
{
  const struct {
    const char *name;
    Field field;
  } strays[] = {{"RANK", f->launcher == PODS ? NODE : RANK}, {"WORLD_SIZE", SIZE}};
  if (f->launcher == OWN || f->launcher == OWN_NODE || f->launcher == TORCHRUN || f->launcher == INDEXED) {
    return MOE_OK;
  }
  for (size_t i = 0; i < sizeof strays / sizeof *strays; i++) {
    Var v = {.name = strays[i].name, .text = variable(strays[i].name)};
    const Var *own = &f->of[strays[i].field];
    if (v.text == NULL || own->value < 0) {
      continue;
    }
    MOE_TRY(read_number(&v));
    if (v.value != own->value) {
      return contradict(v.name, v.text, own->name, own->text);
    }
  }
  return MOE_OK;
}

static MoeStatus check_found(Found *f)
{
  MOE_TRY(read_numbers(f));
  MOE_TRY(f->launcher == SLURM ? count_slurm(f) : MOE_OK);
  MOE_TRY(check_order(f, RANK, SIZE, false));
  MOE_TRY(check_order(f, LOCAL_RANK, LOCAL_SIZE, false));
  MOE_TRY(check_order(f, LOCAL_SIZE, SIZE, true));
  MOE_TRY(check_order(f, LOCAL_RANK, RANK, true));
  MOE_TRY(check_order(f, NODE, NODES, false));
  return check_stray(f);
}

/* Variables that mean nothing by themselves. */
static MoeStatus check_alone(const MoeBootFlags *flags)
{
  static const struct {
    const char *name, *without;
  } halves[] = {{"WORLD_SIZE", "LOCAL_RANK and LOCAL_WORLD_SIZE (torchrun sets them; RANK alone may be a process's "
                               "number or a pod's)"},
                {"MOE_WORLD_SIZE", "MOE_RANK or --rank"},
                {"MOE_NODES", "MOE_NODE or --node"}};
  for (size_t i = 0; i < sizeof halves / sizeof *halves; i++) {
    char room[24];
    const char *text = value_of(flags, halves[i].name, room, sizeof room);
    if (text != NULL && strcmp(text, "1") != 0) {
      moe_error("%s=%s is set without %s; --nodes 1 trains alone", halves[i].name, text, halves[i].without);
      return MOE_EINVAL;
    }
  }
  if (variable("RANK") != NULL && variable("WORLD_SIZE") == NULL) {
    moe_error(
        "RANK=%s is set without WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE (torchrun sets them); --nodes 1 trains "
        "alone",
        variable("RANK"));
    return MOE_EINVAL;
  }
  return MOE_OK;
}

/* Whether flags or own variables say that nobody else is in the job. */
static bool is_alone(const MoeBootFlags *flags)
{
  char room[24];
  const char *nodes = value_of(flags, "MOE_NODES", room, sizeof room);
  return nodes != NULL && strcmp(nodes, "1") == 0 && flags->rank < 0 && variable("MOE_RANK") == NULL &&
         flags->node <= 0;
}

static MoeStatus find(const MoeBootFlags *flags, Found *f, char texts[N_FIELDS][24], bool *found_p)
{
  *found_p = false;
  if (is_alone(flags)) {
    return MOE_OK;
  }
  bool by_flags = flags->rank >= 0 || flags->node >= 0;
  if (flags->rank >= 0 && flags->node >= 0) {
    moe_error("--rank %lld and --node %lld: a process runs one rank, or all of a host", (long long)flags->rank,
              (long long)flags->node);
    return MOE_EINVAL;
  }
  if (!by_flags && variable("MOE_RANK") != NULL && variable("MOE_NODE") != NULL) {
    return contradict("MOE_RANK", variable("MOE_RANK"), "MOE_NODE", variable("MOE_NODE"));
  }
  for (int i = 0; i < N_LAUNCHERS; i++) {
    bool there = look(flags, (Launcher)i, f, texts);
    MOE_TRY(there && i == SLURM ? look_at_slurm(f, &there) : MOE_OK);
    if (there) {
      *found_p = true;
      MOE_TRY(check_whole(f));
      return check_found(f);
    }
  }
  return check_alone(flags);
}

/* ---- which ranks ---- */

static MoeStatus fit_nodes(MoeSeat *s, const Found *f)
{
  const Var *per = &f->of[PER_NODE];
  int32_t nodes = f->of[NODES].value;
  if (nodes < 1 || s->n_ranks % nodes != 0) {
    moe_error("%s=%s: %d hosts cannot share the plan's %d ranks evenly", f->of[NODES].name, f->of[NODES].text, nodes,
              s->n_ranks);
    return MOE_EINVAL;
  }
  if (per->name != NULL && strcmp(per->text, "auto") != 0) {
    Var count = *per;
    MOE_TRY(read_number(&count));
    if ((int64_t)count.value * nodes != s->n_ranks) {
      moe_error("%s=%s and %s=%s are %lld ranks, the plan has %d", f->of[NODES].name, f->of[NODES].text, per->name,
                per->text, (long long)count.value * nodes, s->n_ranks);
      return MOE_EINVAL;
    }
    Var world = {.name = "WORLD_SIZE", .text = variable("WORLD_SIZE")};
    MOE_TRY(f->launcher == PODS && world.text != NULL ? read_number(&world) : MOE_OK);
    if (f->launcher == PODS && world.text != NULL && world.value != s->n_ranks) {
      return contradict(world.name, world.text, per->name, per->text);
    }
  }
  s->process = f->of[NODE].value;
  s->n_processes = nodes;
  return MOE_OK;
}

static MoeStatus fit_ranks(MoeSeat *s, const Found *f)
{
  const Var *size = &f->of[SIZE];
  s->process = f->of[RANK].value;
  s->n_processes = size->name != NULL ? size->value : s->n_ranks;
  bool one_each = f->of[LOCAL_SIZE].value == 1; /* of each host */
  bool fits = s->n_processes == s->n_ranks || s->n_processes == 1 ||
              (one_each && s->n_processes > 0 && s->n_ranks % s->n_processes == 0);
  if (!fits) {
    moe_error("%s=%s, but the plan has %d ranks: start so many processes, or one on each of a number of hosts that "
              "divides %d",
              size->name, size->text, s->n_ranks, s->n_ranks);
    return MOE_EINVAL;
  }
  if (s->process >= s->n_processes) {
    moe_error("%s=%s, but the plan has %d ranks", f->of[RANK].name, f->of[RANK].text, s->n_ranks);
    return MOE_EINVAL;
  }
  return MOE_OK;
}

/* ---- where to meet ---- */

static MoeStatus set_address(MoeSeat *s, const Found *f)
{
  const Var *address = &f->of[ADDRESS], *port = &f->of[PORT];
  if (port->name == NULL) {
    moe_error("%s=%s is set without MASTER_PORT", address->name, address->text);
    return MOE_EINVAL;
  }
  Var number = *port;
  MOE_TRY(read_number(&number));
  bool taken = f->of[STORE].name != NULL && strcmp(f->of[STORE].text, "True") == 0;
  s->port = number.value + (taken ? 1 : 0);
  if (s->port < 1 || s->port > 65535 || strlen(address->text) >= sizeof s->host) {
    moe_error("%s=%s, %s=%s: no such place to meet", address->name, address->text, port->name, port->text);
    return MOE_EINVAL;
  }
  snprintf(s->host, sizeof s->host, "%s", address->text);
  if (f->launcher == PODS && s->process == 0 && strcmp(s->host, "localhost") == 0) {
    (void)gethostname(s->host, sizeof s->host - 1); /* the operator's word for the first pod in itself */
  }
  return MOE_OK;
}

/* mark: the variable that tells a process its rank. */
static void meet_at_home(MoeSeat *s, const char *unique, const char *mark)
{
  char text[320];
  snprintf(text, sizeof text, "%s/%s/%ld", s->launcher, unique != NULL ? unique : "",
           unique != NULL ? 0L : moe_boot_parent(mark));
  snprintf(s->host, sizeof s->host, "127.0.0.1");
  s->port = moe_boot_port(text);
}

/* Slurm's first host, which has the first task. */
static void meet_at_slurm(MoeSeat *s, const Found *f)
{
  char job[64];
  snprintf(job, sizeof job, "%s.%s", f->of[UNIQUE].text != NULL ? f->of[UNIQUE].text : "",
           variable("SLURM_STEP_ID") != NULL ? variable("SLURM_STEP_ID") : "");
  if (moe_slurm_hosts(f->of[LIST].text) == 1) {
    meet_at_home(s, job, NULL);
  } else if (moe_slurm_host(f->of[LIST].text, 0, s->host, sizeof s->host)) {
    s->port = moe_boot_port(job);
  }
}

static MoeStatus choose_place(MoeSeat *s, const MoeBootFlags *flags, const Found *f)
{
  const char *own = flags->meet != NULL ? flags->meet : variable("MOE_ADDRESS");
  const char *name = flags->meet != NULL ? "--meet" : "MOE_ADDRESS";
  if (own != NULL) {
    if (!moe_boot_address(own, s->host, sizeof s->host, &s->port)) {
      moe_error("%s %s: expected HOST:PORT, or [ADDRESS]:PORT", name, own);
      return MOE_EINVAL;
    }
    return MOE_OK;
  }
  if (f->of[ADDRESS].name != NULL) {
    return set_address(s, f);
  }
  Found slurm = *f;
  char texts[N_FIELDS][24];
  if (f->launcher == HYDRA && look(flags, SLURM, &slurm, texts)) { /* srun --mpi=pmi2 */
    MOE_TRY(read_numbers(&slurm));
  }
  if (slurm.launcher == SLURM && slurm.of[LIST].name != NULL && slurm.of[RANK].value == s->process &&
      slurm.of[SIZE].value == s->n_processes && moe_slurm_hosts(slurm.of[LIST].text) > 0) {
    meet_at_slurm(s, &slurm);
  } else if (f->of[LOCAL_SIZE].value == s->n_processes) {
    meet_at_home(s, f->of[UNIQUE].text, f->of[RANK].name);
  }
  if (s->port == 0) {
    moe_error("%s tells no place to meet to processes of several hosts: give --meet HOST:PORT, or MOE_ADDRESS, of the "
              "host of rank 0",
              launchers[f->launcher].name);
    return MOE_EINVAL;
  }
  return MOE_OK;
}

MoeStatus moe_boot_seat(MoeSeat *s, const MoeBootFlags *flags, int32_t n_ranks)
{
  Found f;
  char texts[N_FIELDS][24];
  bool found = false;
  *s = (MoeSeat){.n_ranks = n_ranks, .n_processes = 1, .n = n_ranks, .local_rank = -1};
  MOE_TRY(find(flags, &f, texts, &found));
  if (!found) {
    return MOE_OK;
  }
  MOE_TRY(launchers[f.launcher].unit == BY_NODE ? fit_nodes(s, &f) : fit_ranks(s, &f));
  if (s->n_processes == 1) {
    return MOE_OK;
  }
  s->launcher = launchers[f.launcher].name;
  s->n = n_ranks / s->n_processes;
  s->first = s->process * s->n;
  s->local_rank = f.of[LOCAL_RANK].value;
  return choose_place(s, flags, &f);
}
