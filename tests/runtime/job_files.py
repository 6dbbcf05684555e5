"""The example job files of specs/jobs, run: scripts by the launchers that are installed; of the others each pod becomes a
process with the command, arguments and variables of the file, and those that the operator adds.

usage: job_files.py PROGRAM yaml|scripts|slurm
"""

import os
import shutil
import subprocess
import sys

import job_base as jt
import runtime_test as rt
from job_launchers import Slurm
from runtime_test import check

FILES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "specs", "jobs")
LAYOUT = "a=2 f=2"


def settings(**more):
    """What the scripts take from the environment."""
    with open("token", "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as f:
        f.write(jt.TOKEN + "\n")
    return rt.environment(LAYOUT, TRAIN=rt.PROGRAM, DATA=rt.DATA, STEPS="3", SAVE="ck", OMPI_ALLOW_RUN_AS_ROOT="1",
                          OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", **more)


def trained(command, env):
    shutil.rmtree("ck", ignore_errors=True)
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=200)
    check(done.returncode == 0 and "step 3/3  loss 1.0000" in done.stdout and os.listdir("ck") == ["step-000003"],
          f"{command}: {done.returncode}\n{done.stdout}")


def case_scripts():
    ran = []
    if jt.is_open_mpi(shutil.which("mpirun")):
        trained([f"{FILES}/mpirun.sh", "--oversubscribe"], settings(RANKS="4"))
        trained([f"{FILES}/mpirun.sh", "--oversubscribe", "-x", "MOE_ADDRESS", "-x", "MOE_TOKEN_FILE"],
                settings(RANKS="4", MOE_ADDRESS=f"127.0.0.1:{jt.free_port()}", MOE_TOKEN_FILE=os.path.abspath("token")))
        ran.append("mpirun")
    if shutil.which("mpiexec.hydra"):
        trained([f"{FILES}/mpirun.sh"], settings(RANKS="4", MPIRUN="mpiexec.hydra"))
        ran.append("mpiexec.hydra")
    if shutil.which("torchrun"):
        trained([f"{FILES}/torchrun.sh"], settings(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(jt.free_port()), NODES="1", NODE="0",
                                                   RANKS_PER_NODE="4", MOE_TOKEN_FILE=os.path.abspath("token")))
        ran.append("torchrun")
    if not ran:
        jt.skip("none of the launchers is installed")
    print("ran by", ", ".join(ran))


def case_slurm():
    with Slurm() as slurm:
        env = settings(**slurm.env)
        subprocess.run(["sbatch", "-W", "-o", "out", f"{FILES}/slurm.sbatch"], env=env, timeout=200, stdout=subprocess.DEVNULL)
        out = open("out").read()
        check("step 3/3  loss 1.0000" in out and os.listdir("ck") == ["step-000003"], out)
        check(not [f for f in os.listdir(".") if f.startswith("token-")], "the token is left")


def pods_of(document):
    """(container, number of pods) of every kind of pod in a document, in the order of their numbers."""
    spec, kind = document["spec"], document["kind"]
    if kind == "PyTorchJob":
        return [(r["template"]["spec"]["containers"][0], r["replicas"]) for r in spec["pytorchReplicaSpecs"].values()]
    if kind == "TrainJob":
        return [(spec["trainer"], spec["trainer"]["numNodes"])]
    if kind == "Job":
        check(spec["completionMode"] == "Indexed" and spec["completions"] == spec["parallelism"], "not all pods at once")
        return [(spec["template"]["spec"]["containers"][0], spec["completions"])]
    check(kind == "Service", kind)
    return []


def added(document, i, n, port):
    """What the operator or the cluster sets in pod i of n."""
    pets = dict(PET_NNODES=n, PET_NODE_RANK=i, PET_MASTER_PORT=port)
    per = document["spec"].get("nprocPerNode", "auto")
    if document["kind"] == "PyTorchJob":
        return dict(pets, PET_NPROC_PER_NODE=per, MASTER_ADDR="127.0.0.1", MASTER_PORT=port, PET_MASTER_ADDR="127.0.0.1",
                    WORLD_SIZE=n * int(per), RANK=i, PYTHONUNBUFFERED=1)
    if document["kind"] == "TrainJob":
        return dict(pets, PET_NPROC_PER_NODE=per, PET_MASTER_ADDR="127.0.0.1", JOB_COMPLETION_INDEX=i)
    return dict(JOB_COMPLETION_INDEX=i)


def case_yaml():
    try:
        import yaml
    except ImportError:
        jt.skip("there is no yaml module")
    os.mkdir("checkpoints")
    settings()
    places = {"/data/tokens": rt.DATA, "/checkpoints": os.path.abspath("checkpoints"), "/secret/token": os.path.abspath("token"), "1000": "3"}
    for name in sorted(os.listdir(FILES)):
        if not name.endswith(".yaml"):
            continue
        shutil.rmtree("checkpoints")
        pods, port = [], jt.free_port()
        for document in yaml.safe_load_all(open(os.path.join(FILES, name))):
            kinds = pods_of(document)
            containers = [c for c, count in kinds for _ in range(count)]
            for i, c in enumerate(containers):
                given = {v["name"]: places.get(v.get("value"), v.get("value", jt.TOKEN)) for v in c["env"]}
                if "MOE_ADDRESS" in given:  # the name of the first pod
                    check(given["MOE_ADDRESS"].startswith(f"{document['metadata']['name']}-0."), given["MOE_ADDRESS"])
                    given["MOE_ADDRESS"] = f"127.0.0.1:{port}"
                env = rt.environment(LAYOUT, MOE_TEST_HOST=str(i), **given, **{k: str(v) for k, v in added(document, i, len(containers), port).items()})
                check(c["command"] == ["/model/train"], str(c["command"]))
                pods.append(subprocess.Popen([rt.PROGRAM, *(places.get(a, a) for a in c["args"]), "--holdout", "0"], env=env,
                                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        ends = [(p.communicate(timeout=60)[1], p.returncode) for p in pods]
        check(len(pods) == 2 and all(code == 0 for _, code in ends), f"{name}: {ends}")
        check("step 3/3  loss 1.0000" in ends[0][0] and os.listdir("checkpoints") == ["step-000003"], f"{name}: {ends}")


if __name__ == "__main__":
    jt.run(globals())
