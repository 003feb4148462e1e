/* Accesses of no bytes: by every routine, of no elements and of elements without bytes, where there is a file and behind it,
 * and in collective calls where others have some.
 *
 * usage: nothing FILE */
#include "check.h"

enum { ROUTINES = 26, NUMBERS = 100000 };

static int rank, ranks;
static MPI_File file;

/* Nothing, by one of the routines; an offset where it takes one. */
static void call(int routine, MPI_Offset at, void *data, int count, MPI_Datatype type, MPI_Status *status)
{
    MPI_Request request = MPI_REQUEST_NULL;
    switch (routine) {
    case 0: CALL(MPI_File_read_at(file, at, data, count, type, status)); break;
    case 1: CALL(MPI_File_write_at(file, at, data, count, type, status)); break;
    case 2: CALL(MPI_File_read_at_all(file, at, data, count, type, status)); break;
    case 3: CALL(MPI_File_write_at_all(file, at, data, count, type, status)); break;
    case 4: CALL(MPI_File_read(file, data, count, type, status)); break;
    case 5: CALL(MPI_File_write(file, data, count, type, status)); break;
    case 6: CALL(MPI_File_read_all(file, data, count, type, status)); break;
    case 7: CALL(MPI_File_write_all(file, data, count, type, status)); break;
    case 8: CALL(MPI_File_read_shared(file, data, count, type, status)); break;
    case 9: CALL(MPI_File_write_shared(file, data, count, type, status)); break;
    case 10: CALL(MPI_File_read_ordered(file, data, count, type, status)); break;
    case 11: CALL(MPI_File_write_ordered(file, data, count, type, status)); break;
    case 12: CALL(MPI_File_iread_at(file, at, data, count, type, &request)); break;
    case 13: CALL(MPI_File_iwrite_at(file, at, data, count, type, &request)); break;
    case 14: CALL(MPI_File_iread_at_all(file, at, data, count, type, &request)); break;
    case 15: CALL(MPI_File_iwrite_at_all(file, at, data, count, type, &request)); break;
    case 16: CALL(MPI_File_iread(file, data, count, type, &request)); break;
    case 17: CALL(MPI_File_iwrite(file, data, count, type, &request)); break;
    case 18: CALL(MPI_File_iread_shared(file, data, count, type, &request)); break;
    case 19: CALL(MPI_File_iwrite_shared(file, data, count, type, &request)); break;
    case 20: CALL(MPI_File_iread_all(file, data, count, type, &request)); break;
    case 21: CALL(MPI_File_iwrite_all(file, data, count, type, &request)); break;
    case 22:
        CALL(MPI_File_read_at_all_begin(file, at, data, count, type));
        CALL(MPI_File_read_at_all_end(file, data, status));
        break;
    case 23:
        CALL(MPI_File_write_at_all_begin(file, at, data, count, type));
        CALL(MPI_File_write_at_all_end(file, data, status));
        break;
    case 24:
        CALL(MPI_File_read_ordered_begin(file, data, count, type));
        CALL(MPI_File_read_ordered_end(file, data, status));
        break;
    default:
        CALL(MPI_File_write_ordered_begin(file, data, count, type));
        CALL(MPI_File_write_ordered_end(file, data, status));
    }
    if (request != MPI_REQUEST_NULL)
        CALL(MPI_Wait(&request, status));
}

/* The file's size, and where both pointers are. */
static void check_file(MPI_Offset size, MPI_Offset individual, MPI_Offset shared)
{
    MPI_Offset found;
    CALL(MPI_File_get_size(file, &found));
    CHECK(found == size);
    CALL(MPI_File_get_position(file, &found));
    CHECK(found == individual);
    CALL(MPI_File_get_position_shared(file, &found));
    CHECK(found == shared);
    /* Nobody goes on while somebody looks. */
    MPI_Barrier(MPI_COMM_WORLD);
}

/* Every routine, with a pointer and without; `empty` has no bytes. */
static void every_routine(MPI_Datatype empty, MPI_Offset size, MPI_Offset individual, MPI_Offset shared)
{
    const MPI_Offset places[] = {0, 1, 1 << 20, (MPI_Offset)1 << 40};
    int data[4] = {1, 2, 3, 4};
    for (int routine = 0; routine < ROUTINES; routine++) {
        for (int i = 0; i < 8; i++) {
            int moved = -1;
            MPI_Status status;
            step = routine;
            call(routine, places[i % 4], i < 4 ? data : NULL, i % 2 ? 0 : 3, i % 2 ? MPI_INT : empty, &status);
            CALL(MPI_Get_count(&status, MPI_INT, &moved));
            CHECK(moved == 0);
        }
        check_file(size, individual, shared);
    }
    CHECK(data[0] == 1 && data[3] == 4);
}

/* The last rank alone has bytes; all routines in which all take part. */
static void others_have_some(void)
{
    const int together[] = {2, 3, 6, 7, 10, 11, 14, 15, 20, 21, 22, 23, 24, 25};
    static int data[NUMBERS];
    for (size_t i = 0; i < sizeof together / sizeof *together; i++) {
        int moved = -1, mine = rank == ranks - 1 ? NUMBERS : 0;
        MPI_Status status;
        step = together[i];
        CALL(MPI_File_seek(file, 0, MPI_SEEK_SET));
        CALL(MPI_File_seek_shared(file, 0, MPI_SEEK_SET));
        for (int k = 0; k < NUMBERS; k++)
            data[k] = together[i] % 2 ? k : -1;
        call(together[i], 0, data, mine, MPI_INT, &status);
        CALL(MPI_Get_count(&status, MPI_INT, &moved));
        CHECK(moved == mine);
        /* What was written first is what everybody reads. */
        CHECK(mine == 0 || (data[0] == 0 && data[NUMBERS - 1] == NUMBERS - 1));
        CHECK(mine > 0 || data[0] == (together[i] % 2 ? 0 : -1));
        MPI_Barrier(MPI_COMM_WORLD);
    }
}

int main(int argc, char **argv)
{
    static int data[NUMBERS];
    MPI_Datatype empty;
    MPI_Info info;
    MPI_Init(&argc, &argv);
    CHECK(argc == 2);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    CALL(MPI_Type_contiguous(0, MPI_INT, &empty));
    CALL(MPI_Type_commit(&empty));
    const char *const choices[] = {"disable", "enable", "automatic"};
    for (int i = 0; i < 3; i++) {
        CALL(MPI_Info_create(&info));
        CALL(MPI_Info_set(info, "romio_cb_write", choices[i]));
        CALL(MPI_Info_set(info, "romio_cb_read", choices[i]));
        CALL(MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_RDWR | MPI_MODE_CREATE, info, &file));
        CALL(MPI_Info_free(&info));
        CALL(MPI_File_set_size(file, 0));
        CALL(MPI_File_set_view(file, 0, MPI_INT, MPI_INT, "native", MPI_INFO_NULL));
        every_routine(empty, 0, 0, 0);
        CALL(MPI_File_write_at_all(file, 0, data, rank == 0 ? NUMBERS : 0, MPI_INT, MPI_STATUS_IGNORE));
        CALL(MPI_File_seek(file, 7, MPI_SEEK_SET));
        CALL(MPI_File_seek_shared(file, 9, MPI_SEEK_SET));
        every_routine(empty, sizeof data, 7, 9);
        CALL(MPI_File_set_atomicity(file, 1));
        every_routine(empty, sizeof data, 7, 9);
        CALL(MPI_File_set_atomicity(file, 0));
        for (int k = 0; k < NUMBERS; k++)
            data[k] = k;
        CALL(MPI_File_write_at_all(file, 0, data, rank == 0 ? NUMBERS : 0, MPI_INT, MPI_STATUS_IGNORE));
        CALL(MPI_File_sync(file));
        MPI_Barrier(MPI_COMM_WORLD);
        CALL(MPI_File_sync(file));
        others_have_some();
        /* A view in which there is nothing has a place for nothing. */
        CALL(MPI_File_set_view(file, 0, MPI_INT, empty, "native", MPI_INFO_NULL));
        REFUSED(MPI_File_write_at(file, 0, data, 1, MPI_INT, MPI_STATUS_IGNORE), MPI_ERR_IO);
        every_routine(empty, sizeof data, 0, 0);
        CALL(MPI_File_close(&file));
        memset(data, 0, sizeof data);
    }
    CALL(MPI_Type_free(&empty));
    MPI_Finalize();
    return 0;
}
