/* A process's place from variables: every launcher, every way in which they mislead, and Slurm's compressed lists. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/boot.h"
#include "runtime/log.h"

static char error[400];
static _Atomic uint32_t failed;

typedef struct Case {
  int32_t n_ranks;  /* of the plan */
  const char *vars; /* "A=1 B=2" */
  const char *want; /* "process of processes: first+n at host:port, by launcher", or part of the error */
} Case;

static const MoeBootFlags no_flags = {.rank = -1, .world_size = -1, .node = -1, .nodes = -1};

static void describe(const MoeSeat *s, char *text, size_t n)
{
  if (s->launcher == NULL) {
    snprintf(text, n, "alone: %d+%d", s->first, s->n);
    return;
  }
  char port[16] = "derived";
  if (s->port < 10000 || s->port >= 20000) {
    snprintf(port, sizeof port, "%d", s->port);
  }
  snprintf(text, n, "%d of %d: %d+%d at %s:%s, by %s", s->process, s->n_processes, s->first, s->n, s->host, port,
           s->launcher);
}

/* The seat, or the error, as text. */
static void seat_text(const char *vars, const MoeBootFlags *flags, int32_t n_ranks, char *text, size_t n)
{
  char copy[1024];
  MoeSeat seat;
  clearenv();
  snprintf(copy, sizeof copy, "%s", vars);
  for (char *save = NULL, *var = strtok_r(copy, " ", &save); var != NULL; var = strtok_r(NULL, " ", &save)) {
    char *equals = strchr(var, '=');
    assert_non_null(equals);
    *equals = '\0';
    setenv(var, equals + 1, 1);
  }
  atomic_store(&failed, 0);
  if (moe_boot_seat(&seat, flags, n_ranks) == MOE_OK) {
    describe(&seat, text, n);
  } else {
    assert_int_equal(atomic_load(&failed), 2);
    snprintf(text, n, "%s", error);
  }
}

static void check_cases(const Case *cases, size_t n)
{
  for (size_t i = 0; i < n; i++) {
    char text[512];
    seat_text(cases[i].vars, &no_flags, cases[i].n_ranks, text, sizeof text);
    if (strstr(text, cases[i].want) == NULL) {
      fail_msg("%s, plan of %d: '%s', expected '%s'", cases[i].vars, cases[i].n_ranks, text, cases[i].want);
    }
  }
}

#define TORCHRUN "WORLD_SIZE=4 LOCAL_WORLD_SIZE=2 MASTER_ADDR=h0 MASTER_PORT=29500 "
#define SLURM                                                                                                          \
  "SLURM_STEP_NUM_TASKS=4 SLURM_STEP_TASKS_PER_NODE=2(x2) SLURM_STEP_NODELIST=n[07-08] SLURM_JOB_ID=12 "               \
  "SLURM_STEP_ID=0 "
#define PYTORCHJOB                                                                                                     \
  "MASTER_ADDR=job-master-0 MASTER_PORT=23456 WORLD_SIZE=4 PET_NNODES=2 PET_NPROC_PER_NODE=2 PYTHONUNBUFFERED=1 "
#define TRAINJOB "PET_NNODES=2 PET_NPROC_PER_NODE=auto PET_MASTER_ADDR=t-node-0-0.t PET_MASTER_PORT=29500 "

static void launchers(void **state)
{
  (void)state;
  static const Case cases[] = {
      {4, "", "alone: 0+4"},
      {4, "HOME=/ RANK= WORLD_SIZE=", "alone: 0+4"}, /* empty is not set */
      /* own variables come first */
      {4, "MOE_RANK=3 MOE_ADDRESS=h:1234", "3 of 4: 3+1 at h:1234, by MOE_RANK"},
      {4, "MOE_RANK=3 MOE_WORLD_SIZE=4 MOE_ADDRESS=[::1]:1234 RANK=1 LOCAL_RANK=0", "3 of 4: 3+1 at ::1:1234"},
      {6, "MOE_NODE=1 MOE_NODES=2 MOE_ADDRESS=h:1", "1 of 2: 3+3 at h:1, by MOE_NODE"},
      {4, "MOE_NODES=1", "alone: 0+4"},
      {4, "MOE_NODES=1 SLURM_PROCID=0 SLURM_NTASKS=4", "alone: 0+4"},
      /* torchrun: the agent's store holds MASTER_PORT, so ranks meet beside it */
      {4, TORCHRUN "RANK=3 LOCAL_RANK=1", "3 of 4: 3+1 at h0:29500, by torchrun"},
      {4, TORCHRUN "RANK=3 LOCAL_RANK=1 TORCHELASTIC_USE_AGENT_STORE=True", "at h0:29501"},
      {4, TORCHRUN "RANK=3 LOCAL_RANK=1 TORCHELASTIC_USE_AGENT_STORE=False", "at h0:29500"},
      {4, TORCHRUN "RANK=3 LOCAL_RANK=1 MOE_ADDRESS=x:7", "3 of 4: 3+1 at x:7, by torchrun"},
      /* virtual local ranks: all are 0 */
      {4, TORCHRUN "RANK=3 LOCAL_RANK=0", "3 of 4: 3+1"},
      /* one process of each host runs its ranks */
      {8, "RANK=1 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 MASTER_ADDR=h MASTER_PORT=5", "1 of 2: 4+4 at h:5"},
      {8, "RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 MASTER_ADDR=h MASTER_PORT=5", "alone: 0+8"},
      {4, TORCHRUN "RANK=2 LOCAL_RANK=0 PET_NNODES=2 PET_NODE_RANK=1", "2 of 4: 2+1 at h0:29500, by torchrun"},
      /* torchrun that srun has started */
      {4, TORCHRUN "RANK=3 LOCAL_RANK=1 SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_ID=0", "3 of 4: 3+1 at h0"},
      /* Open MPI; its NODE_RANK is no host's number */
      {4, "OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=2 OMPI_COMM_WORLD_LOCAL_SIZE=4",
       "2 of 4: 2+1 at 127.0.0.1:derived, by Open MPI"},
      {4, "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_NODE_RANK=9 MASTER_ADDR=h MASTER_PORT=6",
       "1 of 4: 1+1 at h:6"},
      /* mpirun in a batch script: Slurm's variables are the script's own, PMIx's those of Open MPI itself */
      {4,
       "OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_SIZE=4 PMIX_RANK=2 SLURM_PROCID=0 "
       "SLURM_NTASKS=4",
       "2 of 4: 2+1 at 127.0.0.1:derived, by Open MPI"},
      {4, "PMI_RANK=1 PMI_SIZE=4 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=4 PMI_FD=6",
       "1 of 4: 1+1 at 127.0.0.1:derived, by Hydra"},
      {4, "PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=1 I_MPI_HYDRA_HOST_FILE=f MOE_ADDRESS=h:2",
       "1 of 2: 2+2 at h:2, by Hydra"},
      {4, SLURM "PMI_RANK=3 PMI_SIZE=4 SLURM_PROCID=3", "3 of 4: 3+1 at n07:derived, by Hydra"}, /* --mpi=pmi2 */
      {4, "PMI_ID=2 PMI_PORT=h:3 MPI_LOCALRANKID=2 MPI_LOCALNRANKS=4", "2 of 4: 2+1 at 127.0.0.1:derived, by Hydra wi"},
      {4, "MV2_COMM_WORLD_RANK=1 MV2_COMM_WORLD_SIZE=4 MV2_COMM_WORLD_LOCAL_RANK=1 MV2_COMM_WORLD_LOCAL_SIZE=4",
       "1 of 4: 1+1 at 127.0.0.1:derived, by MVAPICH2"},
      {4, "PALS_RANKID=3 PALS_NODEID=1 PALS_LOCAL_RANKID=1 MASTER_ADDR=h MASTER_PORT=9", "3 of 4: 3+1 at h:9, by PALS"},
      /* Slurm */
      {4, SLURM "SLURM_PROCID=2 SLURM_NODEID=1 SLURM_LOCALID=0", "2 of 4: 2+1 at n07:derived, by Slurm"},
      {4, SLURM "SLURM_PROCID=2 SLURM_NTASKS=9 SLURM_NPROCS=9", "2 of 4: 2+1 at n07:derived, by Slurm"},
      {4, SLURM "SLURM_PROCID=2 PMIX_RANK=2", "by Slurm"}, /* --mpi=pmix */
      {4, SLURM "SLURM_PROCID=2 MASTER_ADDR=m MASTER_PORT=4 RANK=2 WORLD_SIZE=4", "2 of 4: 2+1 at m:4, by Slurm"},
      {8, "SLURM_PROCID=1 SLURM_NODEID=1 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_TASKS_PER_NODE=1(x2) SLURM_NODELIST=a[1-2]",
       "1 of 2: 4+4 at a1:derived, by Slurm"},
      {4, "SLURM_PROCID=1 SLURM_STEP_ID=0 SLURM_NTASKS=4 SLURM_JOB_NODELIST=big", "1 of 4: 1+1 at 127.0.0.1:derived"},
      {4, "SLURM_PROCID=1 SLURM_STEP_ID=0 SLURM_NPROCS=4 SLURM_JOB_NODELIST=big", "1 of 4: 1+1"},
      /* a batch script of one task starts train itself */
      {4, "SLURM_PROCID=0 SLURM_JOB_ID=3 SLURM_NTASKS=1", "alone: 0+4"},
      {4, "SLURM_JOB_ID=3 SLURM_JOB_NODELIST=n[1-2]", "alone: 0+4"}, /* salloc's shell */
      /* PMIx has no size */
      {4, "PMIX_RANK=3 PMIX_NAMESPACE=x MASTER_ADDR=h MASTER_PORT=8", "3 of 4: 3+1 at h:8, by PMIx"},
      /* Kubernetes: RANK is a pod's number */
      {4, PYTORCHJOB "RANK=1 PET_NODE_RANK=1", "1 of 2: 2+2 at job-master-0:23456, by Kubernetes"},
      {4, TRAINJOB "PET_NODE_RANK=1 JOB_COMPLETION_INDEX=1", "1 of 2: 2+2 at t-node-0-0.t:29500, by Kubernetes"},
      {4, "JOB_COMPLETION_INDEX=1 MOE_NODES=2 MOE_ADDRESS=j-0.j:7", "1 of 2: 2+2 at j-0.j:7, by an Indexed Job"},
      {4, "JOB_COMPLETION_INDEX=3 MOE_NODES=1", "alone: 0+4"}, /* one of several jobs that are alike */
      {4, "COORDINATOR_ADDRESS=c COORDINATOR_PORT=5 NUM_PROCESSES=4 PROCESS_ID=2", "2 of 4: 2+1 at c:5, by a JAXJob"},
  };
  check_cases(cases, sizeof cases / sizeof *cases);
}

static void halves(void **state)
{
  (void)state;
  static const Case cases[] = {
      {4, "RANK=1 WORLD_SIZE=4 MASTER_ADDR=h MASTER_PORT=1",
       "WORLD_SIZE=4 is set without LOCAL_RANK and LOCAL_WORLD_SIZE"},
      {4, "RANK=0", "RANK=0 is set without WORLD_SIZE"},
      {4, "LOCAL_RANK=0", "half of what torchrun sets: LOCAL_RANK=0 without LOCAL_WORLD_SIZE, RANK"},
      {4, TORCHRUN "LOCAL_RANK=1", "without RANK"},
      {4, "OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_RANK=1 without OMPI_COMM_WORLD_SIZE; Open MPI sets both"},
      {4, "PMI_SIZE=4", "PMI_SIZE=4 without PMI_RANK"},
      {4, "PMI_ID=4", "PMI_ID=4 without PMI_PORT"},
      {4, "MV2_COMM_WORLD_SIZE=4", "without MV2_COMM_WORLD_RANK"},
      {4, "SLURM_PROCID=0 SLURM_NTASKS=4", "SLURM_PROCID=0, SLURM_NTASKS=4 without SLURM_STEP_NUM_TASKS; srun sets"},
      {4, "PET_NNODES=2 PET_MASTER_ADDR=h PET_MASTER_PORT=1",
       "PET_NNODES=2, PET_MASTER_ADDR=h, PET_MASTER_PORT=1 without PET_NODE_RANK"},
      {4, "JOB_COMPLETION_INDEX=0", "JOB_COMPLETION_INDEX=0 without MOE_NODES"},
      {4, "NUM_PROCESSES=4 COORDINATOR_ADDRESS=h", "without COORDINATOR_PORT, PROCESS_ID"},
      {4, "MOE_NODE=1 MOE_ADDRESS=h:1", "MOE_NODE=1 without MOE_NODES"},
      {4, "MOE_NODES=2 MOE_ADDRESS=h:1", "MOE_NODES=2 is set without MOE_NODE"},
      {4, "MOE_WORLD_SIZE=4", "MOE_WORLD_SIZE=4 is set without MOE_RANK"},
      {4, "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 MASTER_ADDR=h", "MASTER_ADDR=h is set without MASTER_PORT"},
      /* nowhere to meet */
      {4, "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_SIZE=2",
       "Open MPI tells no place to meet"},
      {4, "PMIX_RANK=1", "PMIx tells no place to meet"},
      {4, "MOE_RANK=1", "MOE_RANK tells no place to meet"},
      {4, "JOB_COMPLETION_INDEX=1 MOE_NODES=2", "an Indexed Job tells no place to meet"},
      {4, "MOE_RANK=1 MOE_ADDRESS=h", "MOE_ADDRESS h: expected HOST:PORT"},
      {4, "MOE_RANK=1 MOE_ADDRESS=::1:5", "expected HOST:PORT, or [ADDRESS]:PORT"},
      {4, "MOE_RANK=1 MOE_ADDRESS=h:65536", "expected HOST:PORT"},
      {4, "MOE_RANK=1 MOE_ADDRESS=:1", "expected HOST:PORT"},
  };
  check_cases(cases, sizeof cases / sizeof *cases);
}

static void contradictions(void **state)
{
  (void)state;
  static const Case cases[] = {
      {4, TORCHRUN "RANK=4 LOCAL_RANK=0", "RANK=4 and WORLD_SIZE=4 contradict each other"},
      {4, TORCHRUN "RANK=3 LOCAL_RANK=2", "LOCAL_RANK=2 and LOCAL_WORLD_SIZE=2 contradict"},
      {4, TORCHRUN "RANK=0 LOCAL_RANK=1", "LOCAL_RANK=1 and RANK=0 contradict"},
      {4, "RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=4 MASTER_ADDR=h MASTER_PORT=1",
       "LOCAL_WORLD_SIZE=4 and WORLD_SIZE=2 contradict"},
      {4, TORCHRUN "RANK=x LOCAL_RANK=1", "RANK=x: expected a whole number"},
      {4, TORCHRUN "RANK=-1 LOCAL_RANK=1", "RANK=-1: expected a whole number"},
      {4, TORCHRUN "RANK=99999999999 LOCAL_RANK=1", "RANK=99999999999: expected a whole number"},
      {4, "OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_SIZE=4 RANK=1",
       "RANK=1 and OMPI_COMM_WORLD_RANK=2 contradict"},
      {4, SLURM "SLURM_PROCID=2 WORLD_SIZE=8", "WORLD_SIZE=8 and SLURM_STEP_NUM_TASKS=4 contradict"},
      {4, "SLURM_PROCID=2 SLURM_STEP_NUM_TASKS=4 SLURM_STEP_TASKS_PER_NODE=2(x3)",
       "SLURM_STEP_TASKS_PER_NODE=2(x3) and SLURM_STEP_NUM_TASKS=4 contradict"},
      {4, "SLURM_PROCID=2 SLURM_STEP_NUM_TASKS=4 SLURM_STEP_TASKS_PER_NODE=2(x2) SLURM_STEP_NODELIST=a[1-3]",
       "SLURM_STEP_TASKS_PER_NODE=2(x2) and SLURM_STEP_NODELIST=a[1-3] contradict"},
      {4, "SLURM_PROCID=2 SLURM_STEP_NUM_TASKS=4 SLURM_STEP_NODELIST=a[3-1]",
       "SLURM_STEP_NODELIST=a[3-1] is not a list"},
      {4, "SLURM_PROCID=2 SLURM_STEP_NUM_TASKS=4 SLURM_STEP_TASKS_PER_NODE=2x2", "is not a list of task counts"},
      {4, PYTORCHJOB "RANK=0 PET_NODE_RANK=1", "RANK=0 and PET_NODE_RANK=1 contradict"},
      {4, PYTORCHJOB "RANK=2 PET_NODE_RANK=2", "PET_NODE_RANK=2 and PET_NNODES=2 contradict"},
      {4, "MOE_RANK=1 MOE_NODE=0 MOE_NODES=2", "MOE_RANK=1 and MOE_NODE=0 contradict"},
      /* elastic jobs have no size */
      {4, "PET_NNODES=1:2 PET_NODE_RANK=0 MASTER_ADDR=h MASTER_PORT=1", "PET_NNODES=1:2: expected a whole number"},
      /* job and plan */
      {5, TORCHRUN "RANK=3 LOCAL_RANK=1", "WORLD_SIZE=4, but the plan has 5 ranks"},
      {8, TORCHRUN "RANK=3 LOCAL_RANK=1", "WORLD_SIZE=4, but the plan has 8 ranks"}, /* two on a host: no such choice */
      {4, "PMIX_RANK=4 MOE_ADDRESS=h:1", "PMIX_RANK=4, but the plan has 4 ranks"},
      {6, PYTORCHJOB "RANK=1 PET_NODE_RANK=1", "PET_NNODES=2 and PET_NPROC_PER_NODE=2 are 4 ranks, the plan has 6"},
      {4, "PET_NNODES=3 PET_NODE_RANK=0 MASTER_ADDR=h MASTER_PORT=1", "3 hosts cannot share the plan's 4 ranks evenly"},
      {4, "PET_NNODES=2 PET_NPROC_PER_NODE=2 PET_NODE_RANK=0 WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=1",
       "WORLD_SIZE=2 and PET_NPROC_PER_NODE=2 contradict"},
  };
  check_cases(cases, sizeof cases / sizeof *cases);
}

static void flags(void **state)
{
  (void)state;
  char text[512];
  MoeBootFlags f = no_flags;
  f.rank = 2;
  f.meet = "h:3";
  seat_text(TORCHRUN "RANK=0 LOCAL_RANK=0 MOE_ADDRESS=x:1 MOE_NODE=1", &f, 4, text, sizeof text);
  assert_string_equal(text, "2 of 4: 2+1 at h:3, by MOE_RANK");
  f = no_flags;
  f.node = 1;
  f.nodes = 2;
  f.meet = "h:3";
  seat_text("MOE_RANK=3", &f, 4, text, sizeof text);
  assert_string_equal(text, "1 of 2: 2+2 at h:3, by MOE_NODE");
  f.rank = 1;
  seat_text("", &f, 4, text, sizeof text);
  assert_string_equal(text, "--rank 1 and --node 1: a process runs one rank, or all of a host");
  f = no_flags;
  f.nodes = 1;
  seat_text(TORCHRUN "RANK=0 LOCAL_RANK=0", &f, 4, text, sizeof text);
  assert_string_equal(text, "alone: 0+4");
}

static void slurm_lists(void **state)
{
  (void)state;
  static const struct {
    const char *list, *all;
  } good[] = {
      {"login3", "login3"},
      {"gnode[10,20,25-27],login3", "gnode10 gnode20 gnode25 gnode26 gnode27 login3"},
      {"n[001-003]", "n001 n002 n003"},
      {"n[8-11]", "n8 n9 n10 n11"},
      {"n[08-10,7]", "n08 n09 n10 n7"},
      {"r[1-2]n[05-06],x", "r1n05 r1n06 r2n05 r2n06 x"},
      {"a-b.c_d[1]e", "a-b.c_d1e"},
  };
  static const char *const bad[] = {"",
                                    ",",
                                    "a,",
                                    "a,,b",
                                    "[",
                                    "a[",
                                    "a[]",
                                    "a[1",
                                    "a[1,]",
                                    "a[-1]",
                                    "a[2-1]",
                                    "a[1-]",
                                    "a[1-2-3]",
                                    "a]",
                                    "a[1]]",
                                    "a[[1]]",
                                    "a b",
                                    "a[x]",
                                    "a[1;2]",
                                    "a[1-9999999]",
                                    "a[12345678901]",
                                    "a[0-999]b[0-9999]"};
  for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
    char all[256] = "", name[32];
    int32_t n = moe_slurm_hosts(good[i].list);
    for (int32_t k = 0; k < n; k++) {
      assert_true(moe_slurm_host(good[i].list, k, name, sizeof name));
      snprintf(all + strlen(all), sizeof all - strlen(all), "%s%s", k > 0 ? " " : "", name);
    }
    assert_string_equal(all, good[i].all);
    assert_false(moe_slurm_host(good[i].list, n, name, sizeof name));
    assert_false(moe_slurm_host(good[i].list, 0, name, 2)); /* no room */
  }
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    if (moe_slurm_hosts(bad[i]) != -1) {
      fail_msg("'%s' was taken as a list of %d hosts", bad[i], moe_slurm_hosts(bad[i]));
    }
  }
}

static void slurm_counts(void **state)
{
  (void)state;
  int32_t at, total;
  assert_int_equal(moe_slurm_tasks("2(x3),1", 2, &at, &total), 4);
  assert_int_equal(at, 2);
  assert_int_equal(total, 7);
  assert_int_equal(moe_slurm_tasks("2(x3),1", 3, &at, &total), 4);
  assert_int_equal(at, 1);
  assert_int_equal(moe_slurm_tasks("2(x3),1", 4, &at, &total), 4);
  assert_int_equal(at, 0);
  assert_int_equal(moe_slurm_tasks("16", 0, &at, &total), 1);
  assert_int_equal(total, 16);
  static const char *const bad[] = {"",   ",",      "2,", "0",           "2(x0)",          "2(x", "2(x3", "2(3)",
                                    "x3", "2(x3)1", "-1", "99999999999", "999999(x999999)"};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    assert_int_equal(moe_slurm_tasks(bad[i], 0, &at, &total), -1);
  }
}

int main(void)
{
  moe_log_to(error, sizeof error, &failed);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(launchers), cmocka_unit_test(halves),      cmocka_unit_test(contradictions),
      cmocka_unit_test(flags),     cmocka_unit_test(slurm_lists), cmocka_unit_test(slurm_counts),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
