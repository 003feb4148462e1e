/* What the programs of two ranks share: files and views of theirs, and the choice of a case. */
#ifndef TWO_RANKS_H
#define TWO_RANKS_H

#include "check.h"

#include <stdbool.h>
#include <stdint.h>

static int rank, ranks;
static const char *path;

/* With `romio_cb_write` and `romio_cb_read`, or as usual where there is no choice. */
static inline MPI_File open_as(const char *name, int amode, const char *choice, const char *key, const char *value)
{
    MPI_Info info;
    MPI_File file;
    CALL(MPI_Info_create(&info));
    if (choice != NULL) {
        CALL(MPI_Info_set(info, "romio_cb_write", choice));
        CALL(MPI_Info_set(info, "romio_cb_read", choice));
    }
    if (key != NULL)
        CALL(MPI_Info_set(info, key, value));
    CALL(MPI_File_open(MPI_COMM_WORLD, name, amode, info, &file));
    CALL(MPI_Info_free(&info));
    return file;
}

static inline MPI_File open_new(const char *choice)
{
    MPI_File file = open_as(path, MPI_MODE_RDWR | MPI_MODE_CREATE, choice, NULL, NULL);
    CALL(MPI_File_set_size(file, 0));
    return file;
}

/* A view of pieces of these lengths at these places, again and again after so many bytes. */
static inline void see(MPI_File file, MPI_Offset displacement, int pieces, const int *lengths, const MPI_Aint *places,
                MPI_Aint extent)
{
    MPI_Datatype piece, type;
    CALL(MPI_Type_create_hindexed(pieces, lengths, places, MPI_BYTE, &piece));
    CALL(MPI_Type_create_resized(piece, 0, extent, &type));
    CALL(MPI_Type_commit(&type));
    CALL(MPI_File_set_view(file, displacement, MPI_BYTE, type, "native", MPI_INFO_NULL));
    CALL(MPI_Type_free(&piece));
    CALL(MPI_Type_free(&type));
}

static inline void see_piece(MPI_File file, MPI_Offset displacement, int length, MPI_Aint extent)
{
    MPI_Aint at = 0;
    see(file, displacement, 1, &length, &at, extent);
}

/* Two pieces of 8 bytes, at 0 and 24; the next two would begin at 16: so there are these two. */
static inline void see_once(MPI_File file, MPI_Offset displacement)
{
    see(file, displacement, 2, (int[]){8, 8}, (MPI_Aint[]){0, 24}, 16);
}

static inline void synchronize(MPI_File file)
{
    CALL(MPI_File_sync(file));
    MPI_Barrier(MPI_COMM_WORLD);
    CALL(MPI_File_sync(file));
}

static inline int64_t position_of(MPI_File file)
{
    MPI_Offset at;
    CALL(MPI_File_get_position(file, &at));
    return at;
}

static inline int64_t size_of(MPI_File file)
{
    MPI_Offset bytes;
    CALL(MPI_File_get_size(file, &bytes));
    return bytes;
}

static inline unsigned char *filled(int64_t length)
{
    unsigned char *bytes = malloc((size_t)length);
    for (int64_t i = 0; i < length; i++)
        bytes[i] = (unsigned char)(1 + (rank * 101 + i * 7 + i / 251) % 255);
    return bytes;
}

/* This rank's data are as they were written, by the view that is set. */
static inline void check_data(MPI_File file, const unsigned char *bytes, int length)
{
    unsigned char *back = calloc(1, (size_t)length);
    synchronize(file);
    CALL(MPI_File_read_at_all(file, 0, back, length, MPI_BYTE, MPI_STATUS_IGNORE));
    CHECK(memcmp(bytes, back, (size_t)length) == 0);
    free(back);
}

struct one_case {
    const char *name;
    void (*run)(void);
};

/* Runs the case that the arguments name, with the file that they name; the last case has no name. */
static inline int run_case(int argc, char **argv, const struct one_case *cases)
{
    MPI_Init(&argc, &argv);
    CHECK(argc == 3);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    CHECK(ranks == 2);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    path = argv[2];
    while (cases->name != NULL && strcmp(argv[1], cases->name) != 0)
        cases++;
    CHECK(cases->name != NULL);
    cases->run();
    MPI_Finalize();
    return 0;
}

#endif
