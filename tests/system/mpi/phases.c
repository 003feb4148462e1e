/* Collective calls by two phases: records of the ranks' small pieces and of gaps, beside an image of the file in memory.
 *
 * usage: phases FILE SEED ROUNDS
 *        phases FILE bytes LENGTH CHOICE    one write and one read of pieces of LENGTH bytes, with romio_cb_* = CHOICE */
#include "check.h"

#include <stdbool.h>
#include <stdint.h>

#define RANKS_MAX 16
#define RECORDS_MAX 3000
#define FILE_BYTES (1 << 20)
#define GAP 0xee

static int rank, ranks;
static uint64_t state;

/* The same on all ranks. */
static unsigned below(unsigned limit)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (unsigned)((state >> 11) % limit);
}

/* Where each rank's piece lies in a record. */
struct record {
    int places[RANKS_MAX], lengths[RANKS_MAX], bytes;
};

static struct record random_record(void)
{
    struct record record = {.bytes = (int)below(3) * 5};
    for (int i = 0; i < ranks; i++) {
        record.places[i] = record.bytes;
        record.lengths[i] = 1 + (int)below(below(8) ? 20 : 300);
        record.bytes += record.lengths[i] + (below(3) ? 0 : (int)below(40));
    }
    return record;
}

static MPI_File open_with(const char *path, const char *choice)
{
    char text[32];
    MPI_Info info;
    MPI_File file;
    CALL(MPI_Info_create(&info));
    CALL(MPI_Info_set(info, "romio_cb_write", choice));
    CALL(MPI_Info_set(info, "romio_cb_read", choice));
    snprintf(text, sizeof text, "%u", 1 + below((unsigned)ranks));
    CALL(MPI_Info_set(info, "cb_nodes", text));
    CALL(MPI_Info_set(info, "cb_buffer_size", below(2) ? "65536" : "200000"));
    CALL(MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_RDWR | MPI_MODE_CREATE, info, &file));
    CALL(MPI_Info_free(&info));
    return file;
}

/* A view of this rank's pieces, from a displacement on. */
static void see(MPI_File file, MPI_Offset displacement, int place, int length, int record)
{
    MPI_Datatype piece, type;
    MPI_Aint at = place;
    CALL(MPI_Type_create_hindexed(1, &length, &at, MPI_BYTE, &piece));
    CALL(MPI_Type_create_resized(piece, 0, record, &type));
    CALL(MPI_Type_commit(&type));
    CALL(MPI_File_set_view(file, displacement, MPI_BYTE, type, "native", MPI_INFO_NULL));
    CALL(MPI_Type_free(&piece));
    CALL(MPI_Type_free(&type));
}

static int bytes_of(MPI_Status *status)
{
    int bytes;
    CALL(MPI_Get_count(status, MPI_BYTE, &bytes));
    return bytes;
}

static unsigned char byte_of(int owner, int64_t at, int turn)
{
    return (unsigned char)((owner * 37 + at * 3 + turn * 11) % 200);
}

/* How many of a piece's data lie below an offset. */
static int64_t data_below(int64_t offset, int64_t start, int length, int record)
{
    int64_t whole, rest;
    if (offset <= start)
        return 0;
    whole = (offset - start) / record;
    rest = (offset - start) % record;
    return whole * length + (rest < length ? rest : length);
}

/* The image, everybody's; a round writes random amounts by all ranks, and reads them back. */
static unsigned char image[FILE_BYTES], now[FILE_BYTES];
static int64_t size;

static void one_round(const char *path, int turn)
{
    struct record record = random_record();
    int records = 1 + (int)below((unsigned)(FILE_BYTES / 2 / record.bytes < RECORDS_MAX ? FILE_BYTES / 2 / record.bytes : RECORDS_MAX));
    int64_t displacement = below(1000), froms[RANKS_MAX], counts[RANKS_MAX];
    MPI_Status status;
    MPI_File file = open_with(path, "enable");
    see(file, displacement, record.places[rank], record.lengths[rank], record.bytes);
    for (int i = 0; i < ranks; i++) {
        int64_t all = (int64_t)records * record.lengths[i];
        froms[i] = below(3) ? 0 : below((unsigned)all);
        counts[i] = below(5) ? all - froms[i] : below((unsigned)(all - froms[i]) + 1);
        for (int64_t k = froms[i]; k < froms[i] + counts[i]; k++) {
            int64_t at = displacement + k / record.lengths[i] * record.bytes + record.places[i] + k % record.lengths[i];
            image[at] = byte_of(i, k, turn);
            size = size > at + 1 ? size : at + 1;
        }
    }
    /* Memory in every other pair of bytes, sometimes. */
    bool spread = below(2);
    int64_t count = counts[rank], from = froms[rank];
    unsigned char *memory = malloc(2 * (size_t)count + 2), *back = malloc(2 * (size_t)count + 2);
    MPI_Datatype byte = MPI_BYTE;
    if (spread) {
        CALL(MPI_Type_create_resized(MPI_BYTE, 0, 2, &byte));
        CALL(MPI_Type_commit(&byte));
    }
    memset(memory, 9, 2 * (size_t)count + 2);
    memset(back, 7, 2 * (size_t)count + 2);
    for (int64_t k = 0; k < count; k++)
        memory[spread ? 2 * k : k] = byte_of(rank, from + k, turn);
    if (below(2)) {
        CALL(MPI_File_write_at_all(file, from, memory, (int)count, byte, &status));
    } else {
        CALL(MPI_File_seek(file, from, MPI_SEEK_SET));
        CALL(MPI_File_write_all(file, memory, (int)count, byte, &status));
    }
    CHECK(bytes_of(&status) == count);
    CALL(MPI_File_sync(file));
    MPI_Barrier(MPI_COMM_WORLD);
    CALL(MPI_File_read_at_all(file, from, back, (int)count, byte, &status));
    CHECK(bytes_of(&status) == count);
    for (int64_t k = 0; k < 2 * count + 2; k++)
        CHECK(back[k] == (spread ? (k % 2 == 0 && k < 2 * count ? memory[k] : 7) : k < count ? memory[k] : 7));
    /* A read beyond the end brings what there is, leaves the rest of the memory alone, and the pointer where it ended. */
    int64_t start = displacement + record.places[rank];
    int64_t there = data_below(size, start, record.lengths[rank], record.bytes), more = there + 50;
    unsigned char *all = malloc((size_t)more);
    MPI_Offset position;
    memset(all, 7, (size_t)more);
    CALL(MPI_File_seek(file, 0, MPI_SEEK_SET));
    CALL(MPI_File_read_all(file, all, (int)more, MPI_BYTE, &status));
    CHECK(bytes_of(&status) == there);
    CALL(MPI_File_get_position(file, &position));
    CHECK(position == there);
    for (int64_t k = 0; k < more; k++) {
        int64_t at = start + k / record.lengths[rank] * record.bytes + k % record.lengths[rank];
        CHECK(all[k] == (k < there ? image[at] : 7));
    }
    free(all);
    free(memory);
    free(back);
    if (spread)
        CALL(MPI_Type_free(&byte));
    /* Nothing else was touched. */
    CALL(MPI_File_set_view(file, 0, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL));
    CALL(MPI_File_read_at(file, 0, now, FILE_BYTES, MPI_BYTE, &status));
    CHECK(bytes_of(&status) == size);
    CHECK(memcmp(now, image, (size_t)size) == 0);
    CALL(MPI_File_close(&file));
}

/* A rank that makes a mistake gets an error, and does not keep the others waiting. */
static void mistakes(const char *path)
{
    MPI_File file = open_with(path, "enable");
    unsigned char bytes[100], back[100];
    MPI_Status status;
    memset(bytes, 'a' + rank, sizeof bytes);
    see(file, 0, rank * 10, 10, ranks * 10);
    if (rank == 0)
        REFUSED(MPI_File_write_at_all(file, 0, bytes, -1, MPI_BYTE, &status), MPI_ERR_COUNT);
    else
        CALL(MPI_File_write_at_all(file, 0, bytes, 100, MPI_BYTE, &status));
    CALL(MPI_File_sync(file));
    MPI_Barrier(MPI_COMM_WORLD);
    CALL(MPI_File_read_at_all(file, 0, back, rank == 0 ? 0 : 100, MPI_BYTE, &status));
    CHECK(rank == 0 || memcmp(bytes, back, 100) == 0);
    CALL(MPI_File_close(&file));
}

static void pieces(const char *path, int length, const char *choice)
{
    int bytes = 512 << 10;
    char value[64];
    int found;
    MPI_Info info;
    unsigned char *out = malloc((size_t)bytes), *in = malloc((size_t)bytes);
    MPI_File file = open_with(path, choice);
    CALL(MPI_File_get_info(file, &info));
    CALL(MPI_Info_get(info, "romio_cb_write", 63, value, &found));
    CHECK(found && strcmp(value, choice) == 0);
    CALL(MPI_Info_get(info, "collective_buffering", 63, value, &found));
    CHECK(found && strcmp(value, strcmp(choice, "disable") == 0 ? "false" : "true") == 0);
    CALL(MPI_Info_get(info, "cb_buffer_size", 63, value, &found));
    CHECK(found && atoi(value) >= 65536);
    CALL(MPI_Info_get(info, "cb_nodes", 63, value, &found));
    CHECK(found && atoi(value) >= 1 && atoi(value) <= ranks);
    CALL(MPI_Info_free(&info));
    for (int i = 0; i < bytes; i++)
        out[i] = byte_of(rank, i, 0);
    see(file, 0, rank * length, length, ranks * length);
    CALL(MPI_File_write_at_all(file, 0, out, bytes, MPI_BYTE, MPI_STATUS_IGNORE));
    CALL(MPI_File_sync(file));
    MPI_Barrier(MPI_COMM_WORLD);
    CALL(MPI_File_read_at_all(file, 0, in, bytes, MPI_BYTE, MPI_STATUS_IGNORE));
    CHECK(memcmp(in, out, (size_t)bytes) == 0);
    CALL(MPI_File_close(&file));
    free(out);
    free(in);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    CHECK(argc > 3);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    CHECK(ranks <= RANKS_MAX);
    if (strcmp(argv[2], "bytes") == 0) {
        CHECK(argc > 4);
        state = 1;
        pieces(argv[1], atoi(argv[3]), argv[4]);
        MPI_Finalize();
        return 0;
    }
    state = strtoull(argv[2], NULL, 10) * 2654435761u + 1;
    mistakes(argv[1]);
    MPI_File file = open_with(argv[1], "disable");
    memset(image, GAP, sizeof image);
    size = 5000;
    CALL(MPI_File_set_size(file, 0));
    if (rank == 0)
        CALL(MPI_File_write_at(file, 0, image, (int)size, MPI_BYTE, MPI_STATUS_IGNORE));
    CALL(MPI_File_close(&file));
    memset(image + size, 0, sizeof image - (size_t)size);
    for (step = 0; step < atoi(argv[3]); step++)
        one_round(argv[1], step);
    MPI_Finalize();
    return 0;
}
