#include "codegen/bundle.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "codegen/objcache.h"
#include "codegen/output.h"

static const char manifest_name[] = "moec-manifest.txt";

/* ---- compiling ---- */

/* One of a bundle's compilers. cc: -march=native, since a bundle is for the machine it is built on; no -ffast-math,
   since sums keep their order. */
typedef struct Compiler {
  const char *command;
  const char *flags; /* the user's own among them */
  ObjCache cache;
} Compiler;

#define CODE_FLAGS "-march=native -fno-math-errno -Wall -Wextra -I."

typedef struct Job {
  const Compiler *compiler;
  const char *source; /* path in the temporary folder */
  const char *object; /* in the cache */
  const char *fresh;  /* where the compiler writes; renamed to `object` */
  const char *log;
  pid_t pid;
} Job;

static pid_t start(char *const argv[], const char *log)
{
  pid_t pid = fork();
  if (pid == 0) {
    int fd = open(log, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    if (fd >= 0) {
      dup2(fd, 1);
      dup2(fd, 2);
    }
    execvp(argv[0], argv);
    fprintf(stderr, "%s: %s\n", argv[0], strerror(errno));
    _exit(127);
  }
  return pid;
}

static void show_log(const char *log)
{
  FILE *in = fopen(log, "rb");
  char block[4096];
  for (size_t got; in && (got = fread(block, 1, sizeof block, in)) > 0;) {
    fwrite(block, 1, got, stderr);
  }
  if (in) {
    fclose(in);
  }
}

/* Blank-separated words of `text` appended to argv. */
static int add_words(Arena *arena, char **argv, int n, int room, const char *text)
{
  for (const char *p = text ? text : ""; *p;) {
    size_t skip = strspn(p, " \t\n");
    size_t length = strcspn(p + skip, " \t\n");
    if (length && n < room) {
      argv[n++] = arena_strndup(arena, p + skip, length);
    }
    p += skip + length;
  }
  return n;
}

enum { MAX_ARGS = 256 };

static bool reap(Diag *diag, Job *jobs, int n)
{
  int status = 0;
  pid_t pid = waitpid(-1, &status, 0);
  for (int i = 0; i < n; i++) {
    if (jobs[i].pid != pid) {
      continue;
    }
    jobs[i].pid = 0;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
      return rename(jobs[i].fresh, jobs[i].object) == 0 || output_fail(diag, "create", jobs[i].object);
    }
    show_log(jobs[i].log);
    diag_error(diag, (Span){0}, "%s failed on %s (%s %d)", jobs[i].compiler->command, strrchr(jobs[i].source, '/') + 1,
               WIFSIGNALED(status) ? "signal" : "exit code",
               WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    unlink(jobs[i].fresh);
    return false;
  }
  return true;
}

/* Compiles every job, as many at once as there are cores. */
static bool compile_all(Arena *arena, Diag *diag, Job *jobs, int n, const BuildOptions *options)
{
  long cores = sysconf(_SC_NPROCESSORS_ONLN);
  int running = 0;
  int done = 0;
  bool ok = true;
  for (int next = 0; next < n || running > 0;) {
    ok = ok && !(options->stop && *options->stop);
    if (ok && next < n && running < (cores > 0 ? cores : 1)) {
      char *argv[MAX_ARGS];
      int argc = 0;
      const Compiler *compiler = jobs[next].compiler;
      argv[argc++] = arena_strndup(arena, compiler->command, strlen(compiler->command));
      argc = add_words(arena, argv, argc, MAX_ARGS - 8, compiler->flags);
      argv[argc++] = "-c";
      argv[argc++] = arena_strndup(arena, jobs[next].source, strlen(jobs[next].source));
      argv[argc++] = "-o";
      argv[argc++] = arena_strndup(arena, jobs[next].fresh, strlen(jobs[next].fresh));
      argv[argc] = NULL;
      jobs[next].pid = start(argv, jobs[next].log);
      next++;
      running++;
      continue;
    }
    if (running == 0) {
      break;
    }
    ok = reap(diag, jobs, n) && ok;
    running--;
    done++;
    if (options->progress) {
      fprintf(stderr, "\rcompiling %d/%d%s", done, n, done == n ? "\n" : "");
    }
  }
  return ok;
}

/* The user's flags as nvcc hands them to the host's compiler. */
static const char *host_flags(Arena *arena, const char *cflags)
{
  const char *text = "";
  for (const char *p = cflags ? cflags : ""; *p;) {
    size_t skip = strspn(p, " \t\n");
    size_t length = strcspn(p + skip, " \t\n");
    text = length ? arena_printf(arena, "%s -Xcompiler %.*s", text, (int)length, p + skip) : text;
    p += skip + length;
  }
  return text;
}

const char *bundle_find_nvcc(Arena *arena)
{
  const char *home = getenv("CUDA_HOME");
  const char *own = home && *home ? arena_printf(arena, "%s/bin/nvcc", home) : "";
  if (access(own, X_OK) == 0) {
    return own;
  }
  for (const char *path = getenv("PATH"); path && *path;) {
    size_t n = strcspn(path, ":");
    const char *found = arena_printf(arena, "%.*s/nvcc", (int)n, path);
    if (n && access(found, X_OK) == 0) {
      return found;
    }
    path += n + (path[n] != 0);
  }
  static const char usual[] = "/usr/local/cuda/bin/nvcc";
  return access(usual, X_OK) == 0 ? usual : NULL;
}

/* -gencode of "sm_80,sm_90"; NULL after a message. */
static const char *arch_flags(Arena *arena, Diag *diag, const char *arch)
{
  const char *text = "";
  for (const char *p = arch; *p;) {
    size_t n = strcspn(p, ",");
    if (n < 5 || strncmp(p, "sm_", 3) != 0) {
      diag_error(diag, (Span){0}, "--arch %s: sm_90 is one, sm_80,sm_90 are two", arch);
      return NULL;
    }
    text = arena_printf(arena, "%s -gencode arch=compute_%.*s,code=%.*s", text, (int)n - 3, p + 3, (int)n, p);
    p += n + (p[n] != 0);
  }
  return text;
}

/* By the kind of source; of kinds that the bundle does not have, or that its device does not need, no command. */
static bool choose_compilers(Arena *arena, Diag *diag, const Bundle *bundle, const BuildOptions *options,
                             Compiler compilers[SOURCE_KINDS])
{
  const char *cflags = options->cflags ? options->cflags : "";
  bool cuda = false;
  for (int i = 0; i < bundle->n_files; i++) {
    cuda = cuda || bundle_source(bundle->files[i].path) == SOURCE_CUDA;
  }
  compilers[SOURCE_C] = (Compiler){.command = options->cc ? options->cc : "cc",
                                   .flags = arena_printf(arena, "-std=gnu11 -O3 " CODE_FLAGS " %s", cflags)};
  if (cuda && options->device == DEVICE_EMULATED) { /* -O1: threads that take turns cost more than what they compute */
    compilers[SOURCE_CUDA] =
        (Compiler){.command = "c++", .flags = arena_printf(arena, "-std=gnu++17 -O1 " CODE_FLAGS " %s -x c++", cflags)};
    compilers[SOURCE_SIMT] = compilers[SOURCE_CUDA];
  } else if (cuda) {
    const char *nvcc = options->nvcc ? options->nvcc : bundle_find_nvcc(arena);
    const char *arch = arch_flags(arena, diag, options->arch);
    if (!nvcc) {
      diag_error(diag, (Span){0},
                 "nvcc is not found in $CUDA_HOME, PATH and /usr/local/cuda: --nvcc says where it is, "
                 "--device emulated builds for this machine's processor");
    }
    if (!nvcc || !arch) {
      return false;
    }
    compilers[SOURCE_CUDA] = (Compiler){
        .command = nvcc, .flags = arena_printf(arena, "-std=c++17 -O3%s -I. %s", arch, host_flags(arena, cflags))};
  }
  for (int k = 0; k < SOURCE_KINDS; k++) {
    if (compilers[k].command &&
        !objcache_open(arena, diag, bundle, compilers[k].command, compilers[k].flags, &compilers[k].cache)) {
      return false;
    }
  }
  return true;
}

/* With the compiler that knows most. */
static bool link_train(Arena *arena, Diag *diag, const char *folder, const char **objects, int n,
                       const BuildOptions *options, const Compiler compilers[SOURCE_KINDS])
{
  bool cuda = compilers[SOURCE_CUDA].command;
  bool nvcc = cuda && options->device == DEVICE_GPU;
  const char *command = compilers[cuda ? SOURCE_CUDA : SOURCE_C].command;
  char **argv = arena_new_array(arena, char *, (size_t)n + MAX_ARGS);
  int argc = 0;
  argv[argc++] = arena_strndup(arena, command, strlen(command));
  for (int i = 0; i < n; i++) {
    argv[argc++] = arena_strndup(arena, objects[i], strlen(objects[i]));
  }
  argv[argc++] = arena_strndup(arena, options->runtime_lib, strlen(options->runtime_lib));
  argc = add_words(arena, argv, argc, n + MAX_ARGS - 8, nvcc ? host_flags(arena, options->cflags) : options->cflags);
  if (nvcc) { /* dense products; the toolkit's libraries are found where its compiler was */
    const char *slash = strrchr(command, '/');
    argc = add_words(arena, argv, argc, n + MAX_ARGS - 8, "-lcublasLt");
    if (slash) {
      argc = add_words(arena, argv, argc, n + MAX_ARGS - 8, "-Xlinker -rpath -Xlinker");
      argv[argc++] = arena_printf(arena, "%.*s/../lib64", (int)(slash - command), command);
    }
  }
  argc = add_words(arena, argv, argc, n + MAX_ARGS - 8, cuda ? "" : "-lopenblas");
  argc = add_words(arena, argv, argc, n + MAX_ARGS - 8, "-ljansson -lpthread -lm -o");
  argv[argc++] = arena_printf(arena, "%s/train", folder);
  argv[argc] = NULL;
  const char *log = arena_printf(arena, "%s/link.log", folder);
  pid_t pid = start(argv, log);
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    show_log(log);
    diag_error(diag, (Span){0}, "linking `train` failed");
    return false;
  }
  unlink(log);
  return true;
}

static bool compile_and_link(Arena *arena, Diag *diag, const Bundle *bundle, const char *folder,
                             const BuildOptions *options, BuildResult *result)
{
  Compiler compilers[SOURCE_KINDS] = {0};
  if (!choose_compilers(arena, diag, bundle, options, compilers)) {
    return false;
  }
  Job *jobs = arena_new_array(arena, Job, (size_t)bundle->n_files);
  const char **objects = arena_new_array(arena, const char *, (size_t)bundle->n_files);
  int n_objects = 0;
  for (int i = 0; i < bundle->n_files; i++) {
    const BundleFile *file = &bundle->files[i];
    const Compiler *compiler = &compilers[bundle_source(file->path)];
    if (!compiler->command) {
      continue;
    }
    const char *object = objcache_path(arena, &compiler->cache, file);
    objects[n_objects++] = object;
    if (access(object, R_OK) == 0) {
      result->reused++;
      continue;
    }
    jobs[result->compiled++] = (Job){.compiler = compiler,
                                     .source = arena_printf(arena, "%s/%s", folder, file->path),
                                     .object = object,
                                     .fresh = arena_printf(arena, "%s.%ld", object, (long)getpid()),
                                     .log = arena_printf(arena, "%s/%s.log", folder, file->path)};
  }
  if (!compile_all(arena, diag, jobs, result->compiled, options)) {
    return false;
  }
  for (int i = 0; i < result->compiled; i++) {
    unlink(jobs[i].log);
  }
  return link_train(arena, diag, folder, objects, n_objects, options, compilers);
}

/* ---- placing ---- */

static bool is_bundle(Arena *arena, const char *folder)
{
  return access(arena_printf(arena, "%s/%s", folder, manifest_name), F_OK) == 0;
}

static bool is_empty(const char *folder)
{
  DIR *dir = opendir(folder);
  int n = 0;
  for (struct dirent *entry; dir && (entry = readdir(dir));) {
    n += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
  }
  if (dir) {
    closedir(dir);
  }
  return dir && n == 0;
}

/* Deletes the files that an earlier bundle in `folder` had and this one has not. */
static void drop_stale(Arena *arena, const Bundle *bundle, const char *folder)
{
  FILE *in = fopen(arena_printf(arena, "%s/%s", folder, manifest_name), "r");
  char line[512];
  while (in && fgets(line, sizeof line, in)) {
    line[strcspn(line, "\n")] = 0;
    bool kept = strchr(line, '/') || line[0] == '#' || line[0] == 0;
    for (int i = 0; i < bundle->n_files && !kept; i++) {
      kept = strcmp(bundle->files[i].path, line) == 0;
    }
    if (!kept) {
      unlink(arena_printf(arena, "%s/%s", folder, line));
    }
  }
  if (in) {
    fclose(in);
  }
}

/* Moves every file of `from` into `to`, the program last. */
static bool move_in(Arena *arena, Diag *diag, const Bundle *bundle, const char *from, const char *to, bool program)
{
  drop_stale(arena, bundle, to);
  for (int i = 0; i < bundle->n_files + 2; i++) {
    const char *name = i < bundle->n_files ? bundle->files[i].path : i == bundle->n_files ? manifest_name : "train";
    if (i == bundle->n_files + 1 && !program) {
      break;
    }
    const char *target = arena_printf(arena, "%s/%s", to, name);
    if (rename(arena_printf(arena, "%s/%s", from, name), target) != 0) {
      return output_fail(diag, "create", target);
    }
  }
  return true;
}

static char *manifest_text(Arena *arena, const Bundle *bundle)
{
  size_t n = 128;
  for (int i = 0; i < bundle->n_files; i++) {
    n += strlen(bundle->files[i].path) + 1;
  }
  char *text = arena_alloc(arena, n);
  size_t at = (size_t)snprintf(text, n, "# Files that moec wrote here; `moec build` replaces them.\n");
  for (int i = 0; i < bundle->n_files; i++) {
    at += (size_t)snprintf(text + at, n - at, "%s\n", bundle->files[i].path);
  }
  return text;
}

bool bundle_build(Arena *arena, Diag *diag, const Bundle *bundle, const BuildOptions *options, BuildResult *result)
{
  *result = (BuildResult){0};
  const char *out = options->out;
  bool exists = access(out, F_OK) == 0;
  if (exists && !is_bundle(arena, out) && !is_empty(out)) {
    diag_error(diag, (Span){0}, "%s exists and is not a bundle: choose another folder with -o, or remove it", out);
    return false;
  }
  const char *temp = arena_printf(arena, "%s.tmp-%ld", out, (long)getpid());
  if (mkdir(temp, 0777) != 0) {
    return output_fail(diag, "create", temp);
  }
  bool ok = true;
  for (int i = 0; i < bundle->n_files && ok; i++) {
    const BundleFile *file = &bundle->files[i];
    ok = output_write(diag, arena_printf(arena, "%s/%s", temp, file->path), file->bytes, file->n_bytes);
  }
  char *manifest = manifest_text(arena, bundle);
  ok = ok && output_write(diag, arena_printf(arena, "%s/%s", temp, manifest_name), manifest, strlen(manifest));
  ok = ok && (options->sources_only || compile_and_link(arena, diag, bundle, temp, options, result));
  if (ok && exists) {
    ok = move_in(arena, diag, bundle, temp, out, !options->sources_only);
  } else if (ok && rename(temp, out) != 0) {
    ok = output_fail(diag, "create", out);
  }
  if (!ok || exists) {
    output_remove_folder(temp);
  }
  return ok;
}
