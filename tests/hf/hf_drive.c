/* Loads Hugging Face files into buckets and writes them again, with any parameters on any ranks and without kernels:
     hf_drive FAMILY DTYPE TABLES IN OWN OUT SHARD_BYTES CHUNK_BYTES
   TABLES: lines "model EXPERTS LAYERS TIED", "bucket LAYER HOLDERS..." and, after its bucket, "param NAME ROWS COLS".
   OWN: file for all parameters under their own names, as the ranks have read them. Each rank is a process that has only
   the buckets it holds. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/hf_load.h"
#include "runtime/hf_save.h"
#include "runtime/log.h"
#include "runtime/moe_layout.h"
#include "runtime/tensors.h"

enum { MAX = 4096 };

static MoeParam params[MAX];
static MoeBucket buckets[MAX];
static int32_t holders[MAX];
static MoeHf hf = {.config = "{}\n"};
static MoeBundle bundle = {.model = "made up", .params = params, .buckets = buckets, .holders = holders, .hf = &hf};

static void read_line(char *line, int32_t *n_holders)
{
  char *save;
  char *word = strtok_r(line, " \n", &save);
  MoeBucket *bucket = &buckets[bundle.n_buckets > 0 ? bundle.n_buckets - 1 : 0];
  if (word == NULL) {
    return;
  }
  if (strcmp(word, "model") == 0) {
    bundle.experts = atoi(strtok_r(NULL, " \n", &save));
    bundle.n_layers = atoi(strtok_r(NULL, " \n", &save));
    bundle.tied = atoi(strtok_r(NULL, " \n", &save));
  } else if (strcmp(word, "bucket") == 0) {
    bucket = &buckets[bundle.n_buckets++];
    bucket->layer = (int16_t)atoi(strtok_r(NULL, " \n", &save));
    bucket->first_param = bundle.n_params;
    bucket->first_holder = *n_holders;
    for (char *h; (h = strtok_r(NULL, " \n", &save)) != NULL; bucket->n_holders++) {
      holders[(*n_holders)++] = atoi(h);
    }
  } else {
    MoeParam *p = &params[bundle.n_params++];
    p->name = strdup(strtok_r(NULL, " \n", &save));
    p->rows = atoi(strtok_r(NULL, " \n", &save));
    p->cols = atoi(strtok_r(NULL, " \n", &save));
    p->offset = bucket->elems;
    bucket->elems += (int64_t)p->rows * (p->cols > 0 ? p->cols : 1);
    bucket->n_params++;
  }
}

static int read_tables(const char *path)
{
  char line[1024];
  int32_t n_holders = 0;
  int32_t ranks = 0;
  FILE *in = fopen(path, "r");
  while (in != NULL && fgets(line, sizeof line, in) != NULL) {
    read_line(line, &n_holders);
  }
  if (in == NULL || fclose(in) != 0) {
    fprintf(stderr, "cannot read %s\n", path);
    exit(2);
  }
  for (int32_t i = 0; i < n_holders; i++) {
    ranks = holders[i] + 1 > ranks ? holders[i] + 1 : ranks;
  }
  return ranks;
}

static int run_rank(int32_t rank, const MoeHfLoad *load, const MoeStWriter *own, const MoeHfSave *save)
{
  for (int32_t i = 0; i < bundle.n_buckets; i++) {
    const MoeBucket *bucket = &buckets[i];
    for (int32_t k = 0; k < bucket->n_holders; k++) {
      if (holders[bucket->first_holder + k] != rank) {
        continue;
      }
      MoeHeld h = {.bucket = bucket,
                   .holder = k,
                   .begin = moe_part_begin(bucket->elems, bucket->n_holders, k),
                   .n = moe_part_size(bucket->elems, bucket->n_holders, k),
                   .w = malloc((size_t)bucket->elems * sizeof(float))};
      memset(h.w, 0xff, (size_t)bucket->elems * sizeof(float));
      moe_hf_read(load, &bundle, bucket, h.w);
      if (moe_tensors_write(own, &bundle, &h, h.w) != MOE_OK || moe_hf_save_bucket(save, &bundle, &h, h.w) != MOE_OK) {
        return 1;
      }
      free(h.w);
    }
  }
  return 0;
}

int main(int argc, char **argv)
{
  if (argc != 9) {
    fprintf(stderr, "usage: hf_drive FAMILY DTYPE TABLES IN OWN OUT SHARD_BYTES CHUNK_BYTES\n");
    return 2;
  }
  hf.family = argv[1];
  hf.dtype = argv[2];
  int ranks = read_tables(argv[3]);
  MoeHfLoad load;
  MoeHfSave save = {0};
  MoeStWriter own = MOE_NO_ST_WRITER;
  bool ok = moe_hf_open(&load, &bundle, argv[4]) == MOE_OK && moe_tensors_begin(&own, &bundle, argv[5]) == MOE_OK &&
            moe_hf_save_begin(&save, &bundle, argv[6], atoll(argv[7])) == MOE_OK;
  save.chunk = atoll(argv[8]);
  for (int32_t r = 0; r < ranks && ok; r++) {
    pid_t pid = fork();
    if (pid == 0) {
      _exit(run_rank(r, &load, &own, &save));
    }
    ok = pid > 0;
  }
  for (int status; wait(&status) > 0 || errno == EINTR;) {
    ok = ok && status == 0;
  }
  ok = ok && moe_hf_save_commit(&save, &bundle) == MOE_OK && moe_st_commit(&own) == MOE_OK;
  moe_hf_save_abandon(&save);
  moe_st_abandon(&own);
  moe_hf_close(&load);
  for (int32_t i = 0; i < bundle.n_params; i++) {
    free((void *)(uintptr_t)params[i].name);
  }
  return ok ? 0 : 1;
}
