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
    """{bytes: lines of dictionaries}, and the transport's first use of its slots."""
    lines, first = {}, []
    repeats = [str(args.repeats)] + (["all"] if args.smoke else [])
    for _ in range(args.rounds):
        mpi = {}
        shm = run([args.shm, str(m), str(n)] + repeats)
        if args.mpi:
            for size, goodput in run(mpi_command(args, m, n) + repeats):
                mpi.setdefault(int(size), []).append(float(goodput))
        for size, *numbers in shm:
            line = dict(zip(("transport", "copy", "copies", "transport_cpu", "copy_cpu", "first"), map(float, numbers)))
            line["mpi"] = statistics.median(mpi[int(size)]) if mpi else float("nan")
            lines.setdefault(int(size), []).append(line)
            if line["first"] > 0:
                first.append(line["first"])
    return lines, statistics.median(first)


def show(m, n, lines, first):
    def median(size, top, bottom=None):
        return statistics.median(line[top] / (line[bottom] if bottom else 1) for line in lines[size])

    print(f"\n{m} x {n}: GB/s of rows, medians; ratios of the transport, medians of the ratios within a round")
    heads = ("transport", "copy", "copies", "MPI", "/copy", "/copies", "/copy, CPU", "/MPI")
    print(f"{'message':>10} " + " ".join(f"{head:>10}" for head in heads))
    for size in sorted(lines):
        cells = [median(size, name) for name in ("transport", "copy", "copies", "mpi")]
        cells += [median(size, "transport", "copy"), median(size, "transport", "copies"),
                  median(size, "transport_cpu", "copy_cpu"), median(size, "transport", "mpi")]
        print(f"{size // 1024:>6} KiB " + " ".join(f"{cell:>10.2f}" for cell in cells))
    print(f"first use of the slots, whose pages are not there yet, largest message: {first:.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shm", required=True, help="the m2n_shm program")
    parser.add_argument("--mpi", help="the m2n_mpi program; without it MPI is left out")
    parser.add_argument("--mpirun", default="mpirun")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=5, help="within a round")
    parser.add_argument("--smoke", action="store_true", help="a moment, checking every word that arrives")
    args = parser.parse_args()
    if args.smoke:
        args.rounds, args.repeats = 1, 1
    for m, n in SHAPES:
        lines, first = measure(args, m, n)
        show(m, n, lines, first)


if __name__ == "__main__":
    main()
