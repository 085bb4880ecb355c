# SPDX-License-Identifier: Apache-2.0
"""A Poisson problem solved by PETSc's conjugate gradients: a few sums of one double in each iteration."""
import sys

import petsc4py

petsc4py.init(sys.argv)
from petsc4py import PETSc  # pylint: disable=wrong-import-position

SIDE = 60

matrix = PETSc.Mat().createAIJ([SIDE * SIDE, SIDE * SIDE], nnz=5)
matrix.setUp()
for i in range(*matrix.getOwnershipRange()):
    row, column = divmod(i, SIDE)
    matrix[i, i] = 4
    for is_inside, neighbour in ((row > 0, i - SIDE), (row < SIDE - 1, i + SIDE), (column > 0, i - 1),
                                 (column < SIDE - 1, i + 1)):
        if is_inside:
            matrix[i, neighbour] = -1
matrix.assemble()
solution, right = matrix.createVecs()
right.set(1.0)
solver = PETSc.KSP().create()
solver.setType("cg")
solver.getPC().setType("jacobi")
solver.setOperators(matrix)
solver.setTolerances(rtol=1e-8)
solver.solve(right, solution)
total, norm = solution.sum(), solution.norm()
if PETSc.COMM_WORLD.rank == 0:
    print(f"solved: {solver.getIterationNumber()} {solver.getResidualNorm():.17g} {total:.17g} {norm:.17g}")
