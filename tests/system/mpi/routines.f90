! Every routine of MPI-IO once, by a Fortran binding: each moves this rank's numbers to or from its place.
! Built three times: -DUSE_F08 has mpi_f08, -DUSE_MODULE the module mpi, else mpif.h.
program routines
#if defined(USE_F08)
    use mpi_f08
#elif defined(USE_MODULE)
    use mpi
#endif
    implicit none
#if !defined(USE_F08) && !defined(USE_MODULE)
    include 'mpif.h'
#endif
    integer, parameter :: n = 50
    integer :: rank, ranks, code, i, counted, amode, step
    integer :: out(n), in(n)
    integer(kind=MPI_OFFSET_KIND) :: at, place, bytes
    integer(kind=MPI_ADDRESS_KIND) :: extent
    character(len=1024) :: path
    character(len=MPI_MAX_DATAREP_STRING) :: representation
    logical :: flag
#if defined(USE_F08)
    type(MPI_File) :: file
    type(MPI_Datatype) :: etype, filetype
    type(MPI_Status) :: status
    type(MPI_Request) :: request
    type(MPI_Info) :: info
    type(MPI_Group) :: group
#else
    integer :: file, etype, filetype, request, info, group, status(MPI_STATUS_SIZE)
#endif
    call MPI_Init(code)
    call MPI_Comm_rank(MPI_COMM_WORLD, rank, code)
    call MPI_Comm_size(MPI_COMM_WORLD, ranks, code)
    call get_command_argument(1, path)
    step = 0
    call MPI_File_open(MPI_COMM_WORLD, trim(path), MPI_MODE_RDWR + MPI_MODE_CREATE, MPI_INFO_NULL, file, code)
    call well('open')
    place = 0
    call MPI_File_set_view(file, place, MPI_INTEGER, MPI_INTEGER, 'external32', MPI_INFO_NULL, code)
    call well('set_view')
    call MPI_File_get_view(file, place, etype, filetype, representation, code)
    call expect(place == 0 .and. etype == MPI_INTEGER .and. representation == 'external32', 'get_view')
    call MPI_File_get_type_extent(file, MPI_INTEGER, extent, code)
    call expect(extent == 4, 'get_type_extent')
    at = n * rank

    call next()
    call MPI_File_write_at(file, at, out, n, MPI_INTEGER, status, code)
    call moved('write_at')
    call MPI_File_read_at(file, at, in, n, MPI_INTEGER, status, code)
    call came('read_at')
    call next()
    call MPI_File_write_at_all(file, at, out, n, MPI_INTEGER, status, code)
    call moved('write_at_all')
    call MPI_File_read_at_all(file, at, in, n, MPI_INTEGER, status, code)
    call came('read_at_all')
    call next()
    call MPI_File_iwrite_at(file, at, out, n, MPI_INTEGER, request, code)
    call waited('iwrite_at')
    call MPI_File_iread_at(file, at, in, n, MPI_INTEGER, request, code)
    call waited('iread_at')
    call came('iread_at')
    call next()
    call MPI_File_iwrite_at_all(file, at, out, n, MPI_INTEGER, request, code)
    call waited('iwrite_at_all')
    call MPI_File_iread_at_all(file, at, in, n, MPI_INTEGER, request, code)
    call waited('iread_at_all')
    call came('iread_at_all')
    call next()
    call MPI_File_write_at_all_begin(file, at, out, n, MPI_INTEGER, code)
    call MPI_File_write_at_all_end(file, out, status, code)
    call moved('write_at_all_end')
    call MPI_File_read_at_all_begin(file, at, in, n, MPI_INTEGER, code)
    call MPI_File_read_at_all_end(file, in, status, code)
    call came('read_at_all_end')
    call next()
    call MPI_File_write(file, out, n, MPI_INTEGER, status, code)
    call moved('write')
    call MPI_File_get_position(file, place, code)
    call expect(place == at + n, 'get_position')
    call back()
    call MPI_File_read(file, in, n, MPI_INTEGER, status, code)
    call came('read')
    call next()
    call MPI_File_write_all(file, out, n, MPI_INTEGER, status, code)
    call moved('write_all')
    call back()
    call MPI_File_read_all(file, in, n, MPI_INTEGER, status, code)
    call came('read_all')
    call next()
    call MPI_File_iwrite(file, out, n, MPI_INTEGER, request, code)
    call waited('iwrite')
    call back()
    call MPI_File_iread(file, in, n, MPI_INTEGER, request, code)
    call waited('iread')
    call came('iread')
    call next()
    call MPI_File_iwrite_all(file, out, n, MPI_INTEGER, request, code)
    call waited('iwrite_all')
    call back()
    call MPI_File_iread_all(file, in, n, MPI_INTEGER, request, code)
    call waited('iread_all')
    call came('iread_all')
    call next()
    call MPI_File_write_all_begin(file, out, n, MPI_INTEGER, code)
    call MPI_File_write_all_end(file, out, status, code)
    call moved('write_all_end')
    call back()
    call MPI_File_read_all_begin(file, in, n, MPI_INTEGER, code)
    call MPI_File_read_all_end(file, in, status, code)
    call came('read_all_end')
    call next()
    call MPI_File_write_ordered(file, out, n, MPI_INTEGER, status, code)
    call moved('write_ordered')
    call back()
    call MPI_File_read_ordered(file, in, n, MPI_INTEGER, status, code)
    call came('read_ordered')
    call next()
    call MPI_File_write_ordered_begin(file, out, n, MPI_INTEGER, code)
    call MPI_File_write_ordered_end(file, out, status, code)
    call moved('write_ordered_end')
    call back()
    call MPI_File_read_ordered_begin(file, in, n, MPI_INTEGER, code)
    call MPI_File_read_ordered_end(file, in, status, code)
    call came('read_ordered_end')
    ! Somebody's place, which nobody else gets.
    call next()
    call MPI_File_write_shared(file, out, n, MPI_INTEGER, status, code)
    call moved('write_shared')
    call MPI_File_iwrite_shared(file, out, n, MPI_INTEGER, request, code)
    call waited('iwrite_shared')
    call MPI_Barrier(MPI_COMM_WORLD, code)
    call MPI_File_get_position_shared(file, place, code)
    call expect(place == 2 * n * ranks, 'get_position_shared')
    call back()
    call MPI_File_read_shared(file, in, n, MPI_INTEGER, status, code)
    call moved('read_shared')
    call MPI_File_iread_shared(file, in, n, MPI_INTEGER, request, code)
    call waited('iread_shared')
    call expect(mod(in(1), 1000) == 1 .and. in(n) == in(1) + n - 1, 'what iread_shared brought')

    call MPI_File_get_byte_offset(file, at, place, code)
    call expect(place == 4 * at, 'get_byte_offset')
    call MPI_File_set_atomicity(file, .true., code)
    call MPI_File_get_atomicity(file, flag, code)
    call expect(flag, 'get_atomicity')
    call MPI_File_sync(file, code)
    call well('sync')
    call MPI_Barrier(MPI_COMM_WORLD, code)
    bytes = 12345
    call MPI_File_set_size(file, bytes, code)
    bytes = 20000
    call MPI_File_preallocate(file, bytes, code)
    call MPI_File_get_size(file, bytes, code)
    call expect(bytes == 20000, 'get_size')
    call MPI_File_get_amode(file, amode, code)
    call expect(amode == MPI_MODE_RDWR + MPI_MODE_CREATE, 'get_amode')
    call MPI_File_get_group(file, group, code)
    call MPI_Group_size(group, counted, code)
    call expect(counted == ranks, 'get_group')
    call MPI_Group_free(group, code)
    call MPI_File_get_info(file, info, code)
    call MPI_File_set_info(file, info, code)
    call well('set_info')
    call MPI_Info_free(info, code)
    call MPI_File_close(file, code)
    call well('close')
    call MPI_Barrier(MPI_COMM_WORLD, code)
    if (rank == 0) then
        call MPI_File_delete(trim(path), MPI_INFO_NULL, code)
        call well('delete')
    end if
    call MPI_Finalize(code)
contains
    ! Other numbers than before, when all are done with those.
    subroutine next()
        step = step + 1
        do i = 1, n
            out(i) = step * 100000 + rank * 1000 + i
        end do
        in = 0
        call back()
    end subroutine
    ! Both pointers to where they were.
    subroutine back()
        call MPI_File_seek(file, at, MPI_SEEK_SET, code)
        place = 0
        call MPI_File_seek_shared(file, place, MPI_SEEK_SET, code)
    end subroutine
    subroutine waited(what)
        character(len=*), intent(in) :: what
        call well(what)
        call MPI_Wait(request, status, code)
        call moved(what)
    end subroutine
    subroutine moved(what)
        character(len=*), intent(in) :: what
        call well(what)
        call MPI_Get_count(status, MPI_INTEGER, counted, code)
        call expect(counted == n, what // ': count')
    end subroutine
    subroutine came(what)
        character(len=*), intent(in) :: what
        call moved(what)
        do i = 1, n
            call expect(in(i) == out(i), what // ': numbers')
        end do
    end subroutine
    subroutine well(what)
        character(len=*), intent(in) :: what
        call expect(code == MPI_SUCCESS, what)
    end subroutine
    subroutine expect(holds, what)
        logical, intent(in) :: holds
        character(len=*), intent(in) :: what
        if (.not. holds) then
            write (0, *) 'rank', rank, 'not as it should be: ', what
            call MPI_Abort(MPI_COMM_WORLD, 1, code)
        end if
    end subroutine
end program
