! SPDX-License-Identifier: Apache-2.0
! The same types under other names: REAL, INTEGER, INTEGER*8, DOUBLE PRECISION and REAL*8 of Fortran, summed and checked.
program mpi_client
  use mpi
  implicit none
  integer, parameter :: num = 20000
  integer :: rank, size, code, i
  real :: x(num), sums(num)
  integer :: k(num)
  double precision :: d(num)
  integer*8 :: w(num)
  real*8 :: r(num)
  call MPI_Init(code)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, code)
  call MPI_Comm_size(MPI_COMM_WORLD, size, code)
  do i = 1, num
    x(i) = real(i + rank)
    k(i) = i * (rank + 1)
    d(i) = i * 0.1d0
    r(i) = d(i)
    w(i) = i * 1099511627776_8 + rank
  end do
  call MPI_Allreduce(x, sums, num, MPI_REAL, MPI_SUM, MPI_COMM_WORLD, code)
  call MPI_Allreduce(MPI_IN_PLACE, k, num, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD, code)
  call MPI_Allreduce(MPI_IN_PLACE, d, num, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD, code)
  call MPI_Allreduce(MPI_IN_PLACE, w, num, MPI_INTEGER8, MPI_SUM, MPI_COMM_WORLD, code)
  call MPI_Allreduce(MPI_IN_PLACE, r, num, MPI_REAL8, MPI_SUM, MPI_COMM_WORLD, code)
  do i = 1, num
    if (sums(i) /= real(i * size + size * (size - 1) / 2)) call MPI_Abort(MPI_COMM_WORLD, 9, code)
    if (k(i) /= i * (size * (size + 1) / 2)) call MPI_Abort(MPI_COMM_WORLD, 9, code)
    if (abs(d(i) - i * 0.1d0 * size) > 1d-9) call MPI_Abort(MPI_COMM_WORLD, 9, code)
    if (abs(r(i) - i * 0.1d0 * size) > 1d-9) call MPI_Abort(MPI_COMM_WORLD, 9, code)
    if (w(i) /= i * 1099511627776_8 * size + size * (size - 1) / 2) call MPI_Abort(MPI_COMM_WORLD, 9, code)
  end do
  if (rank == 0) print '(a)', 'done'
  call MPI_Finalize(code)
end program
