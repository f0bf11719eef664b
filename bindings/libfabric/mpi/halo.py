"""Heat that spreads over a plate (Jacobi's method): each rank has some of its rows, and sends its
outer ones, NumPy arrays, to its neighbours after each step. Rank 0 compares with one process."""

import sys

import numpy
from mpi4py import MPI

ROWS, COLUMNS, STEPS = 64, 4000, 100


def step(plate):
    """The inner rows after one step."""
    inner = plate.copy()
    inner[1:-1, 1:-1] = 0.25 * (
        plate[:-2, 1:-1] + plate[2:, 1:-1] + plate[1:-1, :-2] + plate[1:-1, 2:]
    )
    return inner


def start():
    """A hot edge."""
    plate = numpy.zeros((ROWS + 2, COLUMNS + 2))
    plate[0, :] = 100.0
    return plate


def main():
    world = MPI.COMM_WORLD
    rank, ranks = world.Get_rank(), world.Get_size()
    rows = ROWS // ranks
    mine = start()[rank * rows : (rank + 1) * rows + 2].copy()
    above = rank - 1 if rank > 0 else MPI.PROC_NULL
    below = rank + 1 if rank < ranks - 1 else MPI.PROC_NULL
    for _ in range(STEPS):
        mine = step(mine)
        halos = [
            world.Irecv(mine[0], source=above, tag=1),
            world.Irecv(mine[-1], source=below, tag=2),
            world.Isend(mine[-2], dest=below, tag=1),
            world.Isend(mine[1], dest=above, tag=2),
        ]
        MPI.Request.Waitall(halos)
    whole = numpy.empty((ROWS, COLUMNS + 2)) if rank == 0 else None
    world.Gather(mine[1:-1].copy(), whole, root=0)
    if rank == 0:
        alone = start()
        for _ in range(STEPS):
            alone = step(alone)
        if not numpy.array_equal(alone[1:-1], whole):
            sys.exit("the plate is another one than that of one process")
        print("halo: good", flush=True)


main()
