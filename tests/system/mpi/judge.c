/* Random views, datatypes and calls on a file of a pool and, in turns, on one that the MPI library serves by itself: bytes,
 * statuses, pointers and sizes must be the same on both.
 *
 * The MPI library must be one whose MPI-IO is ROMIO, on a local file system. What is known to be wrong there is not asked of
 * it: datatypes that its MPI-IO sees otherwise than its MPI_Pack (a view of them has etypes at wrong places), reads with gaps behind the end of the file (said
 * to have brought everything), where a nonblocking read has left the pointer that met the end (behind what it did not bring), and collective calls where an
 * access has left the pointer at the end of a tile that begins with a gap (they begin in the gap): the pointer is set before each.
 * Its data sieving is switched off: it reads and writes beyond memory. What a read leaves in memory behind the bytes that it says, is nobody's promise.
 *
 * What the MPI library's own says may be kept, and another MPI library, which is no judge, be held to it with the same seed:
 * its own MPI-IO is not called then.
 *
 * usage: judge OURS THEIRS SEED ROUNDS [record|replay DIRECTORY] */
#define _GNU_SOURCE
#include "random.h"

#include <dlfcn.h>
#include <unistd.h>

/* Each rank's part, where ranks are apart, which has more than calls reach; and a file of whole parts. */
#define PART_BYTES (4 << 20)
/* What a tile has for each rank, where they take turns. */
#define TURN_BYTES BYTES_MAX
#define CALLS_OF_ROUND 8

/* Of the calls. */
#define READ_ALL 8
#define WRITE_ALL 9
#define READ_ALL_BEGIN 10
#define IREAD 18
#define IWRITE_ALL 19

enum { OURS, THEIRS, SIDES };

static int rank, ranks;
static MPI_File files[SIDES];
/* The MPI library's own, of this rank alone: it is asked where etypes lie. */
static MPI_File probe;
static char memory[SIDES][COUNT_MAX * BYTES_MAX];
/* OURS alone is called where the other side's answers come from a record. */
static int sides = SIDES;
static FILE *record;
static uint64_t first_of_all;

/* The same number on all ranks: they all draw it. */
static unsigned common(unsigned limit)
{
    static uint64_t of_all;
    uint64_t mine = state;
    state = of_all ? of_all : first_of_all;
    unsigned value = below(limit);
    of_all = state;
    state = mine;
    return value;
}

/* Stands before UCX's own, which MPICH calls again and again where it waits: a rank that finds nothing sleeps, as others
 * may want its processor. The other ways of waiting are meet()'s, and Open MPI's, which yields. */
unsigned ucp_worker_progress(void *worker)
{
    static unsigned (*real)(void *);
    static unsigned idle;
    if (real == NULL)
        CHECK((real = (unsigned (*)(void *))dlsym(RTLD_NEXT, "ucp_worker_progress")) != NULL);
    unsigned done = real(worker);
    idle = done ? 0 : idle + 1;
    if (idle % 64 == 63)
        usleep(50);
    return done;
}

/* All ranks have come here. Those that wait for it sleep: there may be fewer processors than ranks. */
static void meet(void)
{
    MPI_Request request;
    int done = 0;
    CALL(MPI_Ibarrier(MPI_COMM_WORLD, &request));
    CALL(MPI_Test(&request, &done, MPI_STATUS_IGNORE));
    while (!done) {
        usleep(50);
        CALL(MPI_Test(&request, &done, MPI_STATUS_IGNORE));
    }
}

/* Keeps what the other side has said; where that was kept before, returns it instead. */
static long long recorded(long long theirs)
{
    if (record == NULL)
        return theirs;
    if (sides == SIDES)
        CHECK(fwrite(&theirs, sizeof theirs, 1, record) == 1);
    else
        CHECK(fread(&theirs, sizeof theirs, 1, record) == 1);
    return theirs;
}

/* What both sides say must be the same. */
static void same(const char *what, long long ours, long long theirs, unsigned kind)
{
    theirs = recorded(theirs);
    if (ours != theirs)
        FAIL("%s after call %u: %lld, the MPI library's own: %lld (rank %d)", what, kind, ours, theirs, rank);
}

static bool is_collective_by_pointer(unsigned kind)
{
    return kind == READ_ALL || kind == WRITE_ALL || kind == READ_ALL_BEGIN || kind == IWRITE_ALL;
}

/* Of both sides: one that stood within an etype does so no more. */
static void set_pointers(MPI_Offset at)
{
    for (int side = 0; side < sides; side++)
        CALL(MPI_File_seek(files[side], at, MPI_SEEK_SET));
}

static void compare_places(unsigned kind, bool ends)
{
    MPI_Offset at[SIDES] = {0}, shared[SIDES] = {0}, size[SIDES] = {0}, byte[SIDES] = {0}, etype = below(OFFSET_MAX);
    for (int side = 0; side < sides; side++) {
        CALL(MPI_File_get_position(files[side], &at[side]));
        CALL(MPI_File_get_position_shared(files[side], &shared[side]));
        CALL(MPI_File_get_byte_offset(files[side], etype, &byte[side]));
        CALL(MPI_File_get_size(files[side], &size[side]));
    }
    if (kind == IREAD && ends)
        set_pointers(at[OURS]);
    else
        same("the pointer", at[OURS], at[THEIRS], kind);
    same("the shared pointer", shared[OURS], shared[THEIRS], kind);
    same("an etype's place", byte[OURS], byte[THEIRS], kind);
    same("the size", size[OURS], size[THEIRS], kind);
}

/* Whether the MPI library's MPI-IO has the elements of a type where its MPI_Pack has them. */
static bool is_understood(MPI_Datatype type)
{
    MPI_Aint lower, extent;
    int bytes, at = 0;
    MPI_Type_size(type, &bytes);
    MPI_Type_get_extent(type, &lower, &extent);
    same("the size of a type", bytes, bytes, CALLS);
    same("the extent of a type", extent, extent, CALLS);
    if (sides < SIDES)
        return recorded(0);
    int32_t *places = malloc((size_t)extent), *packed = malloc((size_t)bytes), elements = bytes / 4;
    for (int32_t i = 0; i < extent / 4; i++)
        places[i] = 4 * i;
    CALL(MPI_Pack(places, 1, type, packed, bytes, &at, MPI_COMM_SELF));
    CALL(MPI_File_set_view(probe, 0, MPI_INT, type, "native", MPI_INFO_NULL));
    bool agree = true;
    for (int i = 0; i < 3 * elements && agree; i++) {
        MPI_Offset place;
        CALL(MPI_File_get_byte_offset(probe, i, &place));
        agree = place == i / elements * (MPI_Offset)extent + packed[i % elements];
    }
    free(places);
    free(packed);
    return recorded(agree);
}

static MPI_Datatype understood_type(int depth_max)
{
    for (;;) {
        MPI_Datatype type = committed_type(depth_max);
        if (is_understood(type))
            return type;
        free_type(&type);
    }
}

/* One call on both files; by one rank alone where ranks have one pointer and no order. */
static void access_both(MPI_Datatype type, bool ends)
{
    unsigned kind = common(CALLS), actor = common(ranks);
    MPI_Offset offset = below(OFFSET_MAX), at;
    int count = (int)below(COUNT_MAX + 1), bytes[SIDES] = {0}, elements[SIDES] = {0};
    bool shared = kind == 12 || kind == 13 || kind == 16 || kind == 17;
    MPI_Status status[SIDES];
    for (size_t i = 0; i < sizeof memory[OURS]; i++)
        memory[OURS][i] = memory[THEIRS][i] = (char)below(256);
    if (is_collective_by_pointer(kind)) {
        CALL(MPI_File_get_position(files[OURS], &at));
        set_pointers(at);
    }
    meet();
    for (int side = 0; side < sides && (!shared || (int)actor == rank); side++) {
        call(files[side], kind, offset, memory[side], count, type, &status[side]);
        CALL(MPI_Get_count(&status[side], MPI_BYTE, &bytes[side]));
        CALL(MPI_Get_elements(&status[side], MPI_INT, &elements[side]));
    }
    if (!shared || (int)actor == rank) {
        same("bytes", bytes[OURS], bytes[THEIRS], kind);
        same("elements", elements[OURS], elements[THEIRS], kind);
        size_t compared = ends ? (size_t)bytes[OURS] : sizeof memory[OURS];
        for (size_t i = 0; i < compared; i++)
            same("a byte of memory", memory[OURS][i], memory[THEIRS][i], kind);
    }
    meet();
    compare_places(kind, ends);
    meet();
}

/* Moves one of the pointers; and back what has come so far that the next call might leave this rank's part of the file. */
static void seek_both(bool shared)
{
    MPI_Offset at = shared ? (MPI_Offset)common(OFFSET_MAX) : (MPI_Offset)below(OFFSET_MAX);
    for (int side = 0; side < sides; side++)
        if (shared)
            CALL(MPI_File_seek_shared(files[side], at, MPI_SEEK_SET));
        else
            CALL(MPI_File_seek(files[side], at, MPI_SEEK_SET));
}

/* A view of bytes of this rank alone: all ranks take turns in each tile, or each has its part of the file. */
static MPI_Datatype random_view(bool plain, MPI_Offset *displacement)
{
    MPI_Datatype inner, turns;
    if (plain || common(2)) {
        *displacement = (MPI_Offset)rank * PART_BYTES + 4 * below(50);
        return plain ? MPI_INT : understood_type(3);
    }
    *displacement = 4 * common(50) + rank * TURN_BYTES;
    for (;;) {
        inner = understood_type(2);
        CALL(MPI_Type_create_resized(inner, 0, (MPI_Aint)ranks * TURN_BYTES, &turns));
        CALL(MPI_Type_commit(&turns));
        free_type(&inner);
        if (is_understood(turns))
            return turns;
        free_type(&turns);
    }
}

/* A number for the bytes of a file: FNV-1a. */
static long long digest(const char *bytes, MPI_Offset size)
{
    uint64_t number = 0xcbf29ce484222325u;
    for (MPI_Offset i = 0; i < size; i++)
        number = (number ^ (unsigned char)bytes[i]) * 0x100000001b3u;
    return (long long)number;
}

static void compare_files(void)
{
    char *bytes[SIDES];
    MPI_Offset size[SIDES] = {0};
    for (int side = 0; side < sides; side++) {
        CALL(MPI_File_sync(files[side]));
        meet();
        CALL(MPI_File_sync(files[side]));
        CALL(MPI_File_set_view(files[side], 0, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL));
        CALL(MPI_File_get_size(files[side], &size[side]));
        bytes[side] = malloc((size_t)size[side] + 1);
        CALL(MPI_File_read_at(files[side], 0, bytes[side], (int)size[side], MPI_BYTE, MPI_STATUS_IGNORE));
    }
    same("the size", size[OURS], size[THEIRS], CALLS);
    for (MPI_Offset i = 0; sides == SIDES && i < size[OURS]; i++)
        if (bytes[OURS][i] != bytes[THEIRS][i])
            FAIL("byte %lld of the file is %d, the MPI library's own %d", (long long)i, bytes[OURS][i], bytes[THEIRS][i]);
    same("the bytes of the file", digest(bytes[OURS], size[OURS]), digest(bytes[sides - 1], size[sides - 1]), CALLS);
    for (int side = 0; side < sides; side++)
        free(bytes[side]);
    meet();
}

static void round_of_calls(void)
{
    /* A file that ends somewhere has views and memory without gaps. */
    bool ends = common(4) == 0;
    MPI_Offset displacement, size = ends ? common(2 * OFFSET_MAX) : (MPI_Offset)ranks * PART_BYTES;
    MPI_Datatype view = random_view(ends, &displacement);
    for (int side = 0; side < sides; side++) {
        CALL(MPI_File_set_size(files[side], size));
        CALL(MPI_File_set_view(files[side], displacement, MPI_INT, view, "native", MPI_INFO_NULL));
    }
    for (int i = 0; i < CALLS_OF_ROUND; i++) {
        MPI_Datatype type = ends ? MPI_INT : understood_type(2);
        MPI_Offset at, shared;
        CALL(MPI_File_get_position(files[OURS], &at));
        CALL(MPI_File_get_position_shared(files[OURS], &shared));
        /* Each rank says the same of the one, and something else of the other. */
        meet();
        if (at > OFFSET_MAX || below(4) == 0)
            seek_both(false);
        if (shared > OFFSET_MAX || common(4) == 0)
            seek_both(true);
        access_both(type, ends);
        free_type(&type);
    }
    compare_files();
    free_type(&view);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    if (argc != 5 && argc != 7)
        FAIL("usage: %s OURS THEIRS SEED ROUNDS [record|replay DIRECTORY]", argv[0]);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc == 7) {
        char path[4096];
        bool replays = strcmp(argv[5], "replay") == 0;
        CHECK(snprintf(path, sizeof path, "%s/%d", argv[6], rank) < (int)sizeof path);
        CHECK((record = fopen(path, replays ? "r" : "w")) != NULL);
        sides = replays ? THEIRS : SIDES;
    }
    first_of_all = 88172645463325252ull + strtoull(argv[3], NULL, 10) * 7919;
    state = first_of_all + (uint64_t)(rank + 1) * 104729;
    MPI_Info info;
    CALL(MPI_Info_create(&info));
    CALL(MPI_Info_set(info, "romio_ds_read", "disable"));
    CALL(MPI_Info_set(info, "romio_ds_write", "disable"));
    for (int side = 0; side < sides; side++) {
        int amode = MPI_MODE_RDWR | MPI_MODE_CREATE;
        CALL(MPI_File_open(MPI_COMM_WORLD, argv[1 + side], amode, info, &files[side]));
        CALL(MPI_File_set_size(files[side], 0));
    }
    CALL(MPI_Info_free(&info));
    if (sides == SIDES)
        CALL(MPI_File_open(MPI_COMM_SELF, argv[2], MPI_MODE_RDONLY, MPI_INFO_NULL, &probe));
    for (int rounds = atoi(argv[4]); step < rounds; step++)
        round_of_calls();
    if (sides == SIDES)
        CALL(MPI_File_close(&probe));
    for (int side = 0; side < sides; side++)
        CALL(MPI_File_close(&files[side]));
    if (record != NULL) {
        /* All of it was asked for. */
        CHECK(sides == SIDES || fgetc(record) == EOF);
        CHECK(fclose(record) == 0);
    }
    MPI_Finalize();
    return 0;
}
