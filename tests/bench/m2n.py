#!/usr/bin/env python3
"""M2N through the runtime's shared-memory transport against a gathering memcpy and against MPI_Alltoallv.

The three run in turn, round by round; a ratio is the median over rounds of the ratio within a round.
"""
import argparse
import statistics
import subprocess
import sys

SHAPES = [(1, 1), (2, 2)]


def run(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
    return [line.split() for line in done.stdout.splitlines() if line and line[0].isdigit()]


def mpi_command(args, m, n):
    return [args.mpirun, "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--mca", "btl", "self,vader",
            "--mca", "pml", "ob1", "-np", str(m + n), args.mpi, str(m), str(n)]


def measure(args, m, n):
    """{bytes: rounds of (transport, copy, copies, mpi)} and the transport's first use of its slots."""
    rounds, first = {}, []
    repeats = [str(args.repeats)] + (["all"] if args.smoke else [])
    for _ in range(args.rounds):
        shm, mpi = {}, {}
        for size, transport, copy, copies, cold in run([args.shm, str(m), str(n)] + repeats):
            shm.setdefault(int(size), []).append((float(transport), float(copy), float(copies)))
            if cold != "-":
                first.append(float(cold))
        if args.mpi:
            for size, goodput in run(mpi_command(args, m, n) + repeats):
                mpi.setdefault(int(size), []).append(float(goodput))
        for size, lines in shm.items():
            middle = statistics.median(mpi[size]) if mpi else None
            rounds.setdefault(size, []).extend(line + (middle,) for line in lines)
    return rounds, statistics.median(first)


def median(lines, value):
    return statistics.median(value(line) for line in lines)


def show(m, n, rounds, first):
    print(f"\n{m} x {n}: goodput in GB/s, medians; ratios are medians of ratios within a round")
    print(f"{'message':>10} {'transport':>9} {'copy':>7} {'copies':>7} {'MPI':>7} {'/copy':>7} {'/copies':>7} {'/MPI':>7}")
    for size in sorted(rounds):
        lines = rounds[size]
        mpi = lines[0][3] is not None
        columns = [median(lines, lambda line, i=i: line[i]) for i in range(4 if mpi else 3)]
        ratios = [median(lines, lambda line, i=i: line[0] / line[i]) for i in range(1, 4 if mpi else 3)]
        cells = [f"{x:.2f}" for x in columns] + [] if mpi else [f"{x:.2f}" for x in columns] + ["-"]
        cells += [f"{x:.2f}" for x in ratios] + ([] if mpi else ["-"])
        widths = (9, 7, 7, 7, 7, 7, 7)
        print(f"{size // 1024:>6} KiB " + " ".join(f"{c:>{w}}" for c, w in zip(cells, widths)))
    print(f"first use of the slots (pages not yet mapped), largest message: {first:.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shm", required=True, help="the m2n_shm program")
    parser.add_argument("--mpi", help="the m2n_mpi program; without it MPI is left out")
    parser.add_argument("--mpirun", default="mpirun")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=3, help="within a round")
    parser.add_argument("--smoke", action="store_true", help="a moment, checking every word that arrives")
    args = parser.parse_args()
    if args.smoke:
        args.rounds, args.repeats = 1, 1
    for m, n in SHAPES:
        rounds, first = measure(args, m, n)
        show(m, n, rounds, first)


if __name__ == "__main__":
    main()
