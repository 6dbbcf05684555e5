/* One trial: the candidate's spec is written and read back, compiled, and run; its log says how long a step takes. */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "codegen/listener.h"
#include "codegen/median.h"
#include "codegen/output.h"
#include "codegen/tune.h"
#include "lang/ast.h"

extern char **environ;

/* ---- folders ---- */

bool tune_make_work(Arena *arena, Diag *diag, const TuneOptions *o, const char **work)
{
  if (o->work) {
    *work = o->work;
    return mkdir(o->work, 0777) == 0 || errno == EEXIST || output_fail(diag, "create", o->work);
  }
  const char *temp = getenv("TMPDIR");
  char *path = arena_printf(arena, "%s/moec-tune-XXXXXX", temp && *temp ? temp : "/tmp");
  *work = path;
  return mkdtemp(path) || output_fail(diag, "create", path);
}

/* ---- signals that end the search ---- */

static const int ending_signals[] = {SIGINT, SIGQUIT, SIGTERM, SIGHUP};
enum { N_ENDING = sizeof ending_signals / sizeof *ending_signals };
static struct sigaction old_actions[N_ENDING];
static volatile sig_atomic_t caught; /* the first, 0: none */
static volatile sig_atomic_t group;  /* of the trial that runs, 0: none */

static void catch_signal(int number)
{
  int error = errno;
  caught = caught ? caught : number;
  if (group > 0) {
    kill(-group, number);
  }
  errno = error;
}

void tune_catch_signals(void)
{
  struct sigaction action = {.sa_handler = catch_signal, .sa_flags = SA_RESTART};
  sigemptyset(&action.sa_mask);
  caught = 0;
  for (size_t i = 0; i < N_ENDING; i++) {
    sigaction(ending_signals[i], NULL, &old_actions[i]);
    if (old_actions[i].sa_handler != SIG_IGN) {
      sigaction(ending_signals[i], &action, NULL);
    }
  }
}

void tune_release_signals(void)
{
  for (size_t i = 0; i < N_ENDING; i++) {
    sigaction(ending_signals[i], &old_actions[i], NULL);
  }
}

int tune_caught(void)
{
  return caught;
}

/* Waits until the rest of a trial whose shell has ended follow the signal; those that do not are killed. */
static void end_group(pid_t leader)
{
  enum { PATIENCE = 250, MOST = 300 };
  const struct timespec pause = {.tv_nsec = 20000000};
  for (int i = 0; i < MOST && kill(-leader, i == PATIENCE ? SIGKILL : 0) == 0; i++) {
    nanosleep(&pause, NULL);
  }
}

/* ---- the program ---- */

/* Writes the spec, reads it back, and makes the bundle that it says. */
static bool build(Arena *arena, Diag *diag, const TuneOptions *o, const char *spec_path, const char *bundle_path)
{
  AstFile *ast = ast_parse(arena, diag, spec_path, NULL, 0);
  Spec spec;
  if (!ast || !spec_build(arena, diag, ast, &spec)) {
    return false;
  }
  Evaluation e;
  Bundle bundle;
  BuildResult result;
  BuildOptions options = o->build;
  options.out = bundle_path;
  options.progress = false;
  options.stop = &caught;
  bool ok = evaluate_shape(diag, &spec, 0, spec.plan.system, &e) == 0;
  Target target = o->emu ? TARGET_EMU : TARGET_CPU;
  ok = ok && emit_supported(diag, &spec, &e.plan, target) &&
       emit_bundle(arena, diag, &spec, &e.plan, &e.sched, 1, target, o->home, &bundle);
  evaluation_free(&e);
  return ok && bundle_build(arena, diag, &bundle, &options, &result);
}

/* ---- running ---- */

/* For a shell. */
static const char *quoted(Arena *arena, const char *text)
{
  const char *out = "'";
  while (*text) {
    size_t n = strcspn(text, "'");
    out = arena_printf(arena, "%s%.*s%s", out, (int)n, text, text[n] ? "'\\''" : "");
    text += n + (text[n] != 0);
  }
  return arena_printf(arena, "%s'", out);
}

typedef struct Place {
  const char *spec, *bundle, *log, *out, *tokens;
} Place;

static const char *absolute(Arena *arena, const char *path)
{
  char here[4096];
  return *path == '/' || !getcwd(here, sizeof here) ? path : arena_printf(arena, "%s/%s", here, path);
}

static const char *command_of(Arena *arena, const TuneOptions *o, const Place *at)
{
  const char *steps = arena_printf(arena, "%d", o->steps);
  if (!o->launch) {
    const char *data =
        o->emu ? "" : arena_printf(arena, " --data %s --format uint32 --holdout 0", quoted(arena, at->tokens));
    return arena_printf(arena, "exec %s/train --nodes 1 --steps %s --log %s%s", quoted(arena, at->bundle), steps,
                        quoted(arena, at->log), data);
  }
  const struct {
    const char *name, *value;
  } words[] = {{"{bundle}", quoted(arena, at->bundle)},
               {"{log}", quoted(arena, at->log)},
               {"{spec}", quoted(arena, at->spec)},
               {"{steps}", steps}};
  const char *out = "", *from = o->launch;
  while (*from) {
    size_t n = strcspn(from, "{"), skip = from[n] != 0;
    const char *value = from[n] ? "{" : "";
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
      if (strncmp(from + n, words[i].name, strlen(words[i].name)) == 0) {
        value = words[i].value;
        skip = strlen(words[i].name);
      }
    }
    out = arena_printf(arena, "%s%.*s%s", out, (int)n, from, value);
    from += n + skip;
  }
  return out;
}

/* Runs a command with its output in a file, as a process group of its own, to which the signals that end the search are
   passed on. Returns the wait status, or -1. */
static int run(const char *command, const char *out)
{
  char *const argv[] = {"sh", "-c", (char *)(uintptr_t)command, NULL};
  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;
  sigset_t ending, mask;
  pid_t child;
  int status = -1;
  sigemptyset(&ending);
  for (size_t i = 0; i < N_ENDING; i++) {
    sigaddset(&ending, ending_signals[i]);
  }
  sigprocmask(SIG_BLOCK, &ending, &mask); /* none may come before the group is known */
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, out, O_WRONLY | O_CREAT | O_TRUNC, 0666);
  posix_spawn_file_actions_adddup2(&files, STDOUT_FILENO, STDERR_FILENO);
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setsigmask(&attributes, &mask);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK);
  bool runs = !caught && posix_spawnp(&child, "sh", &files, &attributes, argv, environ) == 0;
  group = runs ? child : 0;
  sigprocmask(SIG_SETMASK, &mask, NULL);
  if (runs) {
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    if (caught) {
      end_group(child);
    }
    group = 0;
  }
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  return status;
}

/* The last line of a file that is not blank, or "". */
static const char *last_line(Arena *arena, const char *path)
{
  enum { MOST = 200 };
  FILE *in = fopen(path, "r");
  char line[1024];
  const char *last = "";
  while (in && fgets(line, sizeof line, in)) {
    size_t n = strcspn(line, "\r\n");
    if (strspn(line, " \t\r\n") < n) {
      last = arena_strndup(arena, line, n < MOST ? n : MOST);
    }
  }
  if (in) {
    fclose(in);
  }
  return last;
}

static const char *why(Arena *arena, int status, const char *out)
{
  const char *said = last_line(arena, out);
  const char *how = status < 0            ? "no shell could be started"
                    : WIFSIGNALED(status) ? arena_printf(arena, "ended by signal %d", WTERMSIG(status))
                    : WEXITSTATUS(status) ? arena_printf(arena, "exit code %d", WEXITSTATUS(status))
                                          : "";
  return *how ? arena_printf(arena, "%s%s%s", how, *said ? ": " : "", said) : NULL;
}

/* Median of the steps after the first few. */
static void read_log(Arena *arena, const char *path, TuneTrial *t)
{
  enum { MOST = 4096 };
  double *ms = arena_new_array(arena, double, MOST);
  FILE *in = fopen(path, "r");
  char line[4096];
  int n = 0;
  while (in && n < MOST && fgets(line, sizeof line, in)) {
    json_t *row = json_loads(line, 0, NULL), *time = json_object_get(row, "step_ms");
    time = time ? time : json_object_get(row, "executed_ms");
    if (json_is_number(time)) {
      ms[n++] = json_number_value(time);
    }
    json_decref(row);
  }
  if (in) {
    fclose(in);
  }
  t->steps = n > TUNE_UNMEASURED_STEPS ? n - TUNE_UNMEASURED_STEPS : 0;
  if (t->steps == 0) {
    t->reason = !in ? arena_printf(arena, "it wrote no log %s", path)
                    : arena_printf(arena, "its log has %d step%s; more than %d are needed", n, n == 1 ? "" : "s",
                                   TUNE_UNMEASURED_STEPS);
    return;
  }
  double median = median_of(ms + TUNE_UNMEASURED_STEPS, t->steps);
  if (median > 0) {
    t->measured_ns = median * 1e6;
  } else {
    t->reason = "its log has steps that take no time";
  }
}

/* Tokens to train on: any will do, as only time counts. */
static bool write_tokens(Diag *diag, const Spec *spec, const char *path)
{
  enum { MOST = 1 << 22 };
  int64_t n = (spec->shapes[0].seq + 1) * 8;
  n = n < MOST ? n : spec->shapes[0].seq + 1 > MOST ? spec->shapes[0].seq + 1 : MOST;
  uint32_t *tokens = malloc((size_t)n * sizeof *tokens);
  uint64_t state = 1;
  if (!tokens) {
    die("out of memory");
  }
  for (int64_t i = 0; i < n; i++) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    tokens[i] = (uint32_t)((state >> 33) % (uint64_t)spec->model.vocab);
  }
  bool ok = access(path, F_OK) == 0 || output_write(diag, path, tokens, (size_t)n * sizeof *tokens);
  free(tokens);
  return ok;
}

bool tune_trial(Arena *arena, Diag *diag, const Spec *spec, const TuneOptions *o, const char *work, int number,
                TuneTrial *t, int *ended_by)
{
  const char *folder = arena_printf(arena, "%s/trial-%d", absolute(arena, work), number);
  Place at = {.spec = arena_printf(arena, "%s/spec.moespec", folder),
              .bundle = arena_printf(arena, "%s/bundle", folder),
              .log = arena_printf(arena, "%s/log.jsonl", folder),
              .out = arena_printf(arena, "%s/output.txt", folder),
              .tokens = arena_printf(arena, "%s/tokens.u32", absolute(arena, work))};
  if (mkdir(folder, 0777) != 0 && errno != EEXIST) {
    return output_fail(diag, "create", folder);
  }
  unlink(at.log);
  Printed pinned;
  printed_open(&pinned);
  tune_print_spec(spec, t->what, "a trial of moec tune", pinned.to);
  printed_keep(&pinned, arena);
  bool ok = output_write(diag, at.spec, pinned.text, pinned.n) && (o->emu || write_tokens(diag, spec, at.tokens));
  if (!ok) {
    return false;
  }
  if (!o->launch || strstr(o->launch, "{bundle}")) {
    Listener *l = listener_new(arena);
    bool built = build(arena, l->diag, o, at.spec, at.bundle);
    const char *error = listener_heard(arena, l);
    if (!built) {
      t->reason = error;
      *ended_by = caught;
      return true;
    }
  }
  setenv("MOEC_TRIAL_SPEC", at.spec, 1);
  int status = run(command_of(arena, o, &at), at.out);
  bool interrupted = status >= 0 && ((WIFSIGNALED(status) && WTERMSIG(status) == SIGINT) ||
                                     (WIFEXITED(status) && WEXITSTATUS(status) == 128 + SIGINT));
  *ended_by = caught ? caught : interrupted ? SIGINT : 0;
  t->reason = why(arena, status, at.out);
  if (!t->reason) {
    read_log(arena, at.log, t);
  }
  return true;
}
