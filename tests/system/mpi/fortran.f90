! The same little job by the Fortran bindings: each rank writes a row by a view, and reads its neighbour's.
! Built three times: -DUSE_F08 has mpi_f08, -DUSE_MODULE the module mpi, else mpif.h.
program fortran
#if defined(USE_F08)
    use mpi_f08
#elif defined(USE_MODULE)
    use mpi
#endif
    implicit none
#if !defined(USE_F08) && !defined(USE_MODULE)
    include 'mpif.h'
#endif
    integer, parameter :: columns = 100
    integer :: rank, ranks, code, i, counted, other
    integer :: mine(columns), theirs(columns)
    integer(kind=MPI_OFFSET_KIND) :: displacement, bytes
    character(len=1024) :: path
#if defined(USE_F08)
    type(MPI_File) :: file
    type(MPI_Datatype) :: every
    type(MPI_Status) :: status
    type(MPI_Request) :: request
#else
    integer :: file, every, request, status(MPI_STATUS_SIZE)
#endif
    call MPI_Init(code)
    call MPI_Comm_rank(MPI_COMM_WORLD, rank, code)
    call MPI_Comm_size(MPI_COMM_WORLD, ranks, code)
    call get_command_argument(1, path)
    call MPI_File_open(MPI_COMM_WORLD, trim(path), MPI_MODE_RDWR + MPI_MODE_CREATE, MPI_INFO_NULL, file, code)
    call expect(code == MPI_SUCCESS, 'open')
    call MPI_Type_vector(columns, 1, ranks, MPI_INTEGER, every, code)
    call MPI_Type_commit(every, code)
    displacement = 4 * rank
    call MPI_File_set_view(file, displacement, MPI_INTEGER, every, 'native', MPI_INFO_NULL, code)
    call expect(code == MPI_SUCCESS, 'set_view')
    do i = 1, columns
        mine(i) = 1000 * rank + i
    end do
    call MPI_File_write_all(file, mine, columns, MPI_INTEGER, status, code)
    call expect(code == MPI_SUCCESS, 'write_all')
    call MPI_Get_count(status, MPI_INTEGER, counted, code)
    call expect(counted == columns, 'count of write_all')
    call MPI_Barrier(MPI_COMM_WORLD, code)
    other = mod(rank + 1, ranks)
    displacement = 4 * other
    call MPI_File_set_view(file, displacement, MPI_INTEGER, every, 'native', MPI_INFO_NULL, code)
    displacement = 0
    call MPI_File_iread_at(file, displacement, theirs, columns, MPI_INTEGER, request, code)
    call MPI_Wait(request, status, code)
    call MPI_Get_count(status, MPI_INTEGER, counted, code)
    call expect(counted == columns, 'count of iread_at')
    do i = 1, columns
        call expect(theirs(i) == 1000 * other + i, 'what iread_at brought')
    end do
    call MPI_File_get_size(file, bytes, code)
    call expect(bytes == 4 * columns * ranks, 'size')
    call MPI_File_read_at(file, -1_MPI_OFFSET_KIND, theirs, 1, MPI_INTEGER, MPI_STATUS_IGNORE, code)
    call expect(code /= MPI_SUCCESS, 'a negative offset')
    call MPI_Barrier(MPI_COMM_WORLD, code)
    call MPI_File_close(file, code)
    call expect(code == MPI_SUCCESS, 'close')
    call MPI_Type_free(every, code)
    call MPI_Finalize(code)
contains
    subroutine expect(holds, what)
        logical, intent(in) :: holds
        character(len=*), intent(in) :: what
        if (.not. holds) then
            write (0, *) 'rank', rank, 'not as it should be: ', what
            call MPI_Abort(MPI_COMM_WORLD, 1, code)
        end if
    end subroutine
end program
