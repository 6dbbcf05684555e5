/* Data is read once, by as many threads as there are cores; what they find is told by one. */
#include "runtime/checkpoint_check.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/checkpoint_dir.h"
#include "runtime/crc.h"
#include "runtime/log.h"

enum { MAX_THREADS = 16 };

static MoeStatus out_of_memory(const char *path)
{
  moe_error("%s: out of memory", path);
  return MOE_ENOMEM;
}

/* ---- manifest ---- */

static char *read_text(const char *path, size_t *n_p)
{
  struct stat status;
  char *text = NULL;
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd >= 0 && fstat(fd, &status) == 0 && S_ISREG(status.st_mode)) {
    text = malloc((size_t)status.st_size + 1);
    ssize_t n = text != NULL ? read(fd, text, (size_t)status.st_size) : -1;
    *n_p = n > 0 ? (size_t)n : 0;
    if (n < 0) {
      free(text);
      text = NULL;
    }
  }
  if (text == NULL) {
    moe_error("cannot read %s: %s", path, errno != 0 ? strerror(errno) : "not a file");
  }
  if (fd >= 0) {
    close(fd);
  }
  return text;
}

MoeStatus moe_ck_read_manifest(MoeCheckpoint *c)
{
  size_t n = 0;
  char *path = moe_path_in(c->path, MOE_CK_MANIFEST);
  if (path == NULL) {
    return out_of_memory(c->path);
  }
  errno = 0;
  char *text = read_text(path, &n);
  MoeStatus status = text != NULL ? moe_manifest_parse(&c->manifest, path, text, n) : MOE_EIO;
  free(text);
  free(path);
  return status;
}

/* ---- files ---- */

static MoeStatus check_extra(const MoeCheckpoint *c)
{
  DIR *d = opendir(c->path);
  MoeStatus status = MOE_OK;
  if (d == NULL) {
    moe_error("cannot read %s: %s", c->path, strerror(errno));
    return MOE_EIO;
  }
  for (struct dirent *e = readdir(d); e != NULL && status == MOE_OK; e = readdir(d)) {
    char name[MOE_CK_NAME];
    int32_t rank = strncmp(e->d_name, "rank-", 5) == 0 ? (int32_t)strtol(e->d_name + 5, NULL, 10) : -1;
    bool known = rank >= 0 && rank < c->manifest.n_files &&
                 strcmp(e->d_name, moe_ck_file_name(name, rank, c->manifest.n_files)) == 0;
    if (strncmp(e->d_name, "rank-", 5) == 0 && !known) {
      moe_error("%s holds %s, but its manifest is of %d files", c->path, e->d_name, c->manifest.n_files);
      status = MOE_EIO;
    }
  }
  closedir(d);
  return status;
}

/* Of a header that is not what the manifest says: another step's or rank's file has a name for it. */
static void tell_wrong_header(const MoeCheckpoint *c, const char *path, int32_t rank)
{
  MoeStSet set;
  if (moe_st_open(&set, path) != MOE_OK) {
    return; /* which has told why */
  }
  const char *step = moe_st_metadata(&set, "step");
  const char *owner = moe_st_metadata(&set, "rank");
  if (step != NULL && strtoll(step, NULL, 10) != c->manifest.step) {
    moe_error("%s is of step %s, its checkpoint of step %lld", path, step, (long long)c->manifest.step);
  } else if (owner != NULL && strtol(owner, NULL, 10) != rank) {
    moe_error("%s is the file of rank %s", path, owner);
  } else {
    moe_error("%s: its header does not match the checksum in the manifest", path);
  }
  moe_st_close(&set);
}

static MoeStatus open_file(MoeCheckpoint *c, int32_t rank, const char *path)
{
  const MoeCkFile *wanted = &c->manifest.files[rank];
  MoeCkFile found;
  MOE_TRY(moe_ck_read_file(path, &found));
  if (found.header_crc != wanted->header_crc) {
    tell_wrong_header(c, path, rank);
    return MOE_EIO;
  }
  if (found.bytes != wanted->bytes) {
    moe_error("%s %s %llu bytes, of %llu in the manifest", path,
              found.bytes < wanted->bytes ? "is truncated: it has" : "has", (unsigned long long)found.bytes,
              (unsigned long long)wanted->bytes);
    return MOE_EIO;
  }
  return moe_st_open(&c->sets[rank], path) == MOE_OK ? MOE_OK : MOE_EIO;
}

static MoeStatus open_files(MoeCheckpoint *c)
{
  int32_t n = c->manifest.n_files;
  MoeStatus status = MOE_OK;
  c->sets = calloc((size_t)n, sizeof *c->sets);
  if (c->sets == NULL) {
    return out_of_memory(c->path);
  }
  for (int32_t r = 0; r < n && status == MOE_OK; r++) {
    char name[MOE_CK_NAME];
    char *path = moe_path_in(c->path, moe_ck_file_name(name, r, n));
    errno = 0;
    status = path != NULL ? open_file(c, r, path) : out_of_memory(c->path);
    c->sets[r].path = NULL; /* it is freed here */
    free(path);
  }
  return status;
}

/* ---- data ---- */

const uint8_t *moe_ck_data(const MoeCheckpoint *c, const char *tensor, const MoeCkPart *p, int state)
{
  char name[512];
  snprintf(name, sizeof name, "%s%s", tensor, moe_ck_suffix[state]);
  const MoeStTensor *t = moe_st_find(&c->sets[p->file], name);
  bool fits = t != NULL && t->dtype == MOE_ST_F32 && t->bytes == (uint64_t)(p->end - p->begin) * sizeof(float);
  return fits ? t->data : NULL;
}

/* Threads take the next part each; the first wrong one is kept. */
typedef struct Check {
  const MoeCheckpoint *c;
  _Atomic int64_t next;
  _Atomic int64_t wrong; /* lowest part * MOE_CK_STATE_COUNT + state */
} Check;

static const char *tensor_name(const MoeCheckpoint *c, const MoeCkPart *p)
{
  return c->manifest.tensors[p->tensor].name;
}

static void *check_main(void *arg)
{
  Check *check = arg;
  const MoeManifest *m = &check->c->manifest;
  int64_t n = (int64_t)m->n_parts * MOE_CK_STATE_COUNT;
  for (int64_t i = atomic_fetch_add(&check->next, 1); i < n; i = atomic_fetch_add(&check->next, 1)) {
    const MoeCkPart *p = &m->parts[i / MOE_CK_STATE_COUNT];
    int state = (int)(i % MOE_CK_STATE_COUNT);
    const uint8_t *data = moe_ck_data(check->c, tensor_name(check->c, p), p, state);
    if (data != NULL && moe_crc32(0, data, (size_t)(p->end - p->begin) * sizeof(float)) == p->crc[state]) {
      continue;
    }
    int64_t lowest = atomic_load(&check->wrong);
    while (i < lowest && !atomic_compare_exchange_weak(&check->wrong, &lowest, i)) {
    }
  }
  return NULL;
}

static MoeStatus check_data(const MoeCheckpoint *c)
{
  pthread_t threads[MAX_THREADS];
  Check check = {.c = c, .wrong = INT64_MAX};
  long cores = sysconf(_SC_NPROCESSORS_ONLN);
  int n = 0;
  while (n < MAX_THREADS && n + 1 < cores && pthread_create(&threads[n], NULL, check_main, &check) == 0) {
    n++;
  }
  check_main(&check);
  for (int i = 0; i < n; i++) {
    pthread_join(threads[i], NULL);
  }
  int64_t wrong = atomic_load(&check.wrong);
  if (wrong == INT64_MAX) {
    return MOE_OK;
  }
  const MoeCkPart *p = &c->manifest.parts[wrong / MOE_CK_STATE_COUNT];
  int state = (int)(wrong % MOE_CK_STATE_COUNT);
  char name[MOE_CK_NAME];
  moe_error("%s/%s: tensor %s%s %s", c->path, moe_ck_file_name(name, p->file, c->manifest.n_files), tensor_name(c, p),
            moe_ck_suffix[state],
            moe_ck_data(c, tensor_name(c, p), p, state) == NULL ? "is missing, or not of the size in the manifest"
                                                                : "does not match its checksum in the manifest");
  return MOE_EIO;
}

MoeStatus moe_ck_check_files(MoeCheckpoint *c)
{
  MOE_TRY(check_extra(c));
  MOE_TRY(open_files(c));
  return check_data(c);
}
