"""Jobs started as launchers do: by the variables that each sets, and by those that are installed.

usage: job_launchers.py PROGRAM CASE
"""

import os
import re
import shutil
import socket
import subprocess
import time

import runtime_test as rt
from job_base import TOKEN, free_port, is_open_mpi, run, skip
from runtime_test import check, sanitizers


def started(layout, variables, n, steps=3):
    """n processes with the variables that a launcher gives each: variables(i)."""
    processes = []
    for i in range(n):
        env = rt.environment(layout, MOE_TOKEN=TOKEN, **{k: str(v) for k, v in variables(i).items()})
        processes.append(subprocess.Popen([rt.PROGRAM, "--data", rt.DATA, "--holdout", "0", "--steps", str(steps)], env=env,
                                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    ends = [(p.communicate(timeout=60)[1], p.returncode) for p in processes]
    sanitizers(ends[0][0])
    check(all(code == 0 for _, code in ends) and re.search(r"step 3/3  loss 1\.0000", ends[0][0]), f"{variables(0)}: {ends}")


def case_variables():
    """Exactly what each launcher sets."""
    port = free_port
    p = port()
    started("a=2 f=2", lambda i: dict(RANK=i, WORLD_SIZE=4, LOCAL_RANK=i % 2, LOCAL_WORLD_SIZE=2, GROUP_RANK=i // 2, ROLE_RANK=i, ROLE_WORLD_SIZE=4,
                                      GROUP_WORLD_SIZE=2, MASTER_ADDR="127.0.0.1", MASTER_PORT=p, TORCHELASTIC_RUN_ID="none",
                                      TORCHELASTIC_USE_AGENT_STORE="False", TORCHELASTIC_RESTART_COUNT=0), 4)
    with socket.socket() as agent:  # torchrun's own store holds the port
        agent.bind(("127.0.0.1", 0))
        agent.listen()
        taken = agent.getsockname()[1]
        started("a=2 f=2", lambda i: dict(RANK=i, WORLD_SIZE=4, LOCAL_RANK=i, LOCAL_WORLD_SIZE=4, MASTER_ADDR="127.0.0.1", MASTER_PORT=taken,
                                          TORCHELASTIC_USE_AGENT_STORE="True"), 4)
    started("a=2 f=2", lambda i: dict(SLURM_PROCID=i, SLURM_LOCALID=i, SLURM_NODEID=0, SLURM_STEP_NUM_TASKS=4, SLURM_NTASKS=4, SLURM_NPROCS=4, SLURM_STEP_ID=0,
                                      SLURM_STEP_NODELIST="localhost", SLURM_JOB_NODELIST="localhost", SLURM_STEP_TASKS_PER_NODE="4",
                                      SLURM_JOB_ID=os.getpid(), SLURM_GTIDS="0,1,2,3", PMIX_RANK=i), 4)
    started("a=2 f=2", lambda i: dict(PMI_RANK=i, PMI_SIZE=4, MPI_LOCALRANKID=i, MPI_LOCALNRANKS=4, PMI_FD=9), 4)
    started("a=2 f=2", lambda i: dict(PMIX_RANK=i, PMIX_NAMESPACE="x", MASTER_ADDR="127.0.0.1", MASTER_PORT=p), 4)
    started("a=2 f=2", lambda i: dict(MASTER_ADDR="127.0.0.1", MASTER_PORT=p, PET_MASTER_ADDR="127.0.0.1", PET_MASTER_PORT=p, WORLD_SIZE=4, RANK=i,
                                      PET_NODE_RANK=i, PET_NNODES=2, PET_NPROC_PER_NODE=2, PYTHONUNBUFFERED=1), 2)
    started("a=2 f=2", lambda i: dict(PET_MASTER_ADDR="localhost", PET_MASTER_PORT=p, PET_NODE_RANK=i, PET_NNODES=2, PET_NPROC_PER_NODE="auto",
                                      JOB_COMPLETION_INDEX=i), 2)
    started("a=2 f=2", lambda i: dict(JOB_COMPLETION_INDEX=i, MOE_NODES=2, MOE_ADDRESS=f"127.0.0.1:{p}"), 2)
    started("a=2 f=2", lambda i: dict(COORDINATOR_ADDRESS="127.0.0.1", COORDINATOR_PORT=p, NUM_PROCESSES=4, PROCESS_ID=i), 4)
    started("a=2 f=2", lambda i: dict(SLURM_PROCID=0, SLURM_NTASKS=1, SLURM_JOB_ID=1), 1)  # a batch script: alone


def launched(*command, layout="a=2 f=2", **more):
    env = rt.environment(layout, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", **more)
    done = subprocess.run([*command, rt.PROGRAM, "--data", rt.DATA, "--holdout", "0", "--steps", "3"], env=env, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, timeout=120)
    check(done.returncode == 0 and re.search(r"step 3/3  loss 1\.0000", done.stderr), f"{command}: {done.returncode}\n{done.stderr}")


def case_mpirun():
    mpirun = next((p for p in map(shutil.which, ("mpirun.openmpi", "mpirun")) if is_open_mpi(p)), None)
    if mpirun is None:
        skip("Open MPI is not installed")
    launched(mpirun, "--oversubscribe", "-n", "4")
    launched(mpirun, "--oversubscribe", "-n", "1")  # one process runs all
    launched(mpirun, "--oversubscribe", "-n", "4", "-x", f"MASTER_PORT={free_port()}", "-x", "MASTER_ADDR=127.0.0.1")
    done = subprocess.run([mpirun, "--oversubscribe", "-n", "3", rt.PROGRAM, "--data", rt.DATA, "--steps", "1"],
                          env=rt.environment("a=2 f=2", OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1"),
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60)
    check(done.returncode != 0 and "OMPI_COMM_WORLD_SIZE=3, but the plan has 4 ranks" in done.stderr, done.stderr)


def case_torchrun():
    torchrun = shutil.which("torchrun")
    if torchrun is None:
        skip("torchrun is not installed")
    launched(torchrun, "--no-python", "--nproc-per-node", "4")
    launched(torchrun, "--no-python", "--nproc-per-node", "1")
    launched(torchrun, "--no-python", "--nproc-per-node", "4", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{free_port()}")
    port, env = free_port(), rt.environment("a=2 f=2", MOE_TOKEN=TOKEN)  # two agents, a process each
    agents = [subprocess.Popen([torchrun, "--no-python", "--nnodes", "2", "--node-rank", str(i), "--nproc-per-node", "1", "--master-addr", "127.0.0.1",
                                "--master-port", str(port), rt.PROGRAM, "--data", rt.DATA, "--holdout", "0", "--steps", "3"], env=env,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for i in range(2)]
    ends = [(a.communicate(timeout=100)[1], a.returncode) for a in agents]
    check(all(code == 0 for _, code in ends) and re.search(r"step 3/3  loss 1\.0000", ends[0][0]), str(ends))


def case_hydra():
    hydra = shutil.which("mpiexec.hydra")
    if hydra is None:
        skip("Hydra is not installed")
    launched(hydra, "-n", "4")
    launched(hydra, "-n", "4", "sh", "-c", 'nice "$0" "$@"; exit $?')  # another parent for each


class Slurm:
    """A Slurm of one node, of this test alone."""

    def __enter__(self):
        if os.getuid() != 0 or not all(map(shutil.which, ("slurmctld", "slurmd", "srun", "sbatch"))):
            skip("Slurm is not installed, or not as root")
        name, folder = socket.gethostname().split(".")[0], os.path.abspath("slurm")
        os.makedirs(folder + "/state")
        os.makedirs(folder + "/spool")
        with open(folder + "/slurm.conf", "w") as f:
            f.write(f"""ClusterName=moec
SlurmctldHost={name}(127.0.0.1)
SlurmctldPort={free_port()}
SlurmdPort={free_port()}
AuthType=auth/none
CredType=cred/none
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
NodeName={name} NodeAddr=127.0.0.1 CPUs=8 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
""")
        self.env = dict(SLURM_CONF=folder + "/slurm.conf")
        log = open(folder + "/log", "w")
        run = lambda *a: subprocess.Popen(a, env={**os.environ, **self.env}, stdout=log, stderr=log)
        self.daemons = [run("slurmctld", "-D"), run("slurmd", "-D", "-N", name)]
        limit = time.monotonic() + 30
        while subprocess.run(["srun", "-n", "1", "true"], env={**os.environ, **self.env}, stdout=log, stderr=log, timeout=60).returncode != 0:
            if time.monotonic() > limit:
                self.__exit__()
                skip("no Slurm of its own comes up: " + open(folder + "/log").read()[-400:])
            time.sleep(0.3)
        return self

    def __exit__(self, *_):
        for daemon in self.daemons:
            daemon.terminate()
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


def case_slurm():
    with Slurm() as slurm:
        launched("srun", "-n", "4", **slurm.env)
        launched("srun", "--mpi=pmi2", "-n", "4", **slurm.env)
        launched("srun", "-n", "1", **slurm.env)
        with open("batch.sh", "w") as f:
            train = f"{rt.PROGRAM} --data {rt.DATA} --holdout 0 --steps 3"
            f.write(f"#!/bin/sh\n{train}\necho code $?\n{train} --nodes 1 && srun {train} && mpirun --oversubscribe -n 4 {train} && echo all\n")
        env = rt.environment("a=2 f=2", OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", **slurm.env)
        subprocess.run(["sbatch", "-W", "-n", "4", "-o", "batch.out", "batch.sh"], env=env, timeout=120, stdout=subprocess.DEVNULL)
        out = open("batch.out").read()
        check("SLURM_PROCID=0, SLURM_NTASKS=4 without SLURM_STEP_NUM_TASKS; srun sets both" in out and "code 2" in out, out)
        check(out.count("step 3/3  loss 1.0000") == 3 and out.rstrip().endswith("all"), out)


if __name__ == "__main__":
    run(globals())
