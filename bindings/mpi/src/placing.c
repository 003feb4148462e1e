/* Where a new file's bytes are to lie: what hints say of arrays that are used by blocks, and the machines of the ranks that
 * use them. Hints that make no sense are as if they were not there. */
#include "mpiio.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/* Bytes of a chunk of a file. */
#define UNIT_BYTES_MIN (64ull << 10)
#define UNIT_BYTES_MAX (1ull << 30)
#define DIMENSIONS_MAX 16
/* Blocks of rows for which a machine may be asked: limits::PARTS_MAX. */
#define PARTS_MAX 65536
/* A file ends before: more than any array has that lies in one. */
#define ARRAY_BYTES_MAX (1ull << 62)

/* An array that is used by blocks, by its blocks of rows: each as wide as the array. */
struct blocks {
    /* How many, and the bytes of each; the last one's are fewer where rows are left over. */
    uint64_t count, bytes, last_bytes;
    /* How many blocks lie side by side in one. */
    uint64_t across;
};

/* Numbers above 0 with commas between them; how many there are, or 0. */
static int numbers(const char *list, uint64_t *values)
{
    for (int count = 0; count < DIMENSIONS_MAX;) {
        char *end;
        values[count] = strtoull(list, &end, 10);
        if (end == list || values[count++] == 0 || (*end != ',' && *end != '\0'))
            return 0;
        if (*end == '\0')
            return count;
        list = end + 1;
    }
    return 0;
}

/* What the standard's hints say (`chunked`, `chunked_item`, `chunked_size`). */
static bool blocks_of(MPI_Info info, struct blocks *blocks)
{
    char text[HINT_BYTES_MAX];
    uint64_t array[DIMENSIONS_MAX], block[DIMENSIONS_MAX], all;
    unsigned long long row = 1;
    int dimensions = hint_text(info, "chunked", text) ? numbers(text, array) : 0;
    if (dimensions == 0 || !hint_text(info, "chunked_size", text) || numbers(text, block) != dimensions)
        return false;
    if (hint_text(info, "chunked_item", text) && (!hint(info, "chunked_item", &row) || row == 0))
        return false;
    blocks->across = 1;
    for (int i = 1; i < dimensions; i++) {
        uint64_t aside = array[i] / block[i] + (array[i] % block[i] != 0);
        if (__builtin_mul_overflow(row, array[i], &row) || __builtin_mul_overflow(blocks->across, aside, &blocks->across))
            return false;
    }
    uint64_t left = array[0] % block[0];
    blocks->count = array[0] / block[0] + (left != 0);
    if (__builtin_mul_overflow(row, block[0], &blocks->bytes) || __builtin_mul_overflow(row, array[0], &all) ||
        blocks->bytes > ARRAY_BYTES_MAX || all > ARRAY_BYTES_MAX)
        return false;
    blocks->last_bytes = left ? row * left : blocks->bytes;
    return true;
}

/* Blocks of rows lie in chunks of their own where these have as many bytes as a power of two, else in two chunks at most. So
 * a block's bytes, which are parts of rows, are with one server or with two, however many rows it has. */
static uint64_t unit_of_blocks(MPI_Info info)
{
    struct blocks blocks;
    uint64_t unit = UNIT_BYTES_MIN;
    if (!blocks_of(info, &blocks) || blocks.bytes > UNIT_BYTES_MAX)
        return 0;
    while (unit < blocks.bytes)
        unit *= 2;
    return unit;
}

static bool named_unit(MPI_Info info, unsigned long long *unit)
{
    return hint(info, "striping_unit", unit) && *unit >= UNIT_BYTES_MIN && *unit <= UNIT_BYTES_MAX &&
           (*unit & (*unit - 1)) == 0;
}

/* ---- Machines of ranks ---- */

/* As servers know it. */
static void this_machine(unsigned char machine[MACHINE_BYTES])
{
    /* A machine without a name counts as none that another rank runs on. */
    if (ramlace_machine(machine, MACHINE_BYTES) != 0 && getrandom(machine, MACHINE_BYTES, 0) != MACHINE_BYTES)
        memset(machine, 0, MACHINE_BYTES);
}

int placing_make(struct placing *placing, MPI_Comm comm, int amode, MPI_Info info)
{
    char text[HINT_BYTES_MAX];
    int rank;
    *placing = (struct placing){0};
    this_machine(placing->own);
    PMPI_Comm_rank(comm, &rank);
    PMPI_Comm_size(comm, &placing->ranks);
    placing->near = rank == 0 && (amode & MPI_MODE_CREATE) && hint_text(info, "placement", text) && strcmp(text, "local") == 0;
    if (!placing->near)
        return MPI_SUCCESS;
    placing->machines = malloc((size_t)placing->ranks * MACHINE_BYTES);
    return placing->machines ? MPI_SUCCESS : MPI_ERR_NO_MEM;
}

void placing_gather(struct placing *placing, MPI_Comm comm)
{
    /* It is a wish: a rank that cannot say where it runs goes on, for others wait for it. */
    if (PMPI_Gather(placing->own, MACHINE_BYTES, MPI_BYTE, placing->machines, MACHINE_BYTES, MPI_BYTE, 0, comm) != MPI_SUCCESS)
        placing->near = false;
}

void placing_free(struct placing *placing)
{
    free(placing->machines);
    free(placing->parts);
    *placing = (struct placing){0};
}

/* Each rank's machine by the first rank that runs there. */
static void number_machines(const struct placing *placing, int *first)
{
    for (int rank = 0; rank < placing->ranks; rank++) {
        const unsigned char *machine = placing->machines + (size_t)rank * MACHINE_BYTES;
        first[rank] = rank;
        for (int other = 0; other < rank && first[rank] == rank; other++)
            if (first[other] == other && memcmp(machine, placing->machines + (size_t)other * MACHINE_BYTES, MACHINE_BYTES) == 0)
                first[rank] = other;
    }
}

/* The machine that has the most of the blocks side by side, which belong to the ranks in turns; the first of those. `votes` are
 * all 0, before and after. */
static int machine_of_row(const int *first, int *votes, uint64_t ranks, uint64_t begin, uint64_t across)
{
    uint64_t seen = across < ranks ? across : ranks;
    int most = first[begin % ranks];
    for (uint64_t i = 0; i < seen; i++)
        votes[first[(begin + i) % ranks]]++;
    for (uint64_t i = 0; i < seen; i++) {
        int machine = first[(begin + i) % ranks];
        if (votes[machine] > votes[most])
            most = machine;
    }
    for (uint64_t i = 0; i < seen; i++)
        votes[first[(begin + i) % ranks]] = 0;
    return most;
}

/* Each block of rows is wished on the machine of the ranks that have it. */
static int wish_parts(struct placing *placing, const struct blocks *blocks)
{
    uint64_t ranks = (uint64_t)placing->ranks;
    int *first = calloc(2 * ranks, sizeof *first);
    placing->parts = calloc(blocks->count, sizeof *placing->parts);
    if (placing->parts == NULL || first == NULL) {
        free(first);
        return MPI_ERR_NO_MEM;
    }
    number_machines(placing, first);
    int machine = 0;
    for (uint64_t i = 0; i < blocks->count; i++) {
        /* Whole rounds of the ranks have the same machines each time. */
        if (i == 0 || blocks->across % ranks != 0)
            machine = machine_of_row(first, first + ranks, ranks, i * blocks->across, blocks->across);
        placing->parts[i].bytes = i + 1 < blocks->count ? blocks->bytes : blocks->last_bytes;
        memcpy(placing->parts[i].machine, placing->machines + (size_t)machine * MACHINE_BYTES, MACHINE_BYTES);
    }
    free(first);
    return MPI_SUCCESS;
}

int placing_hints(struct placing *placing, bool one_machine, MPI_Info info, struct ramlace_hints *hints)
{
    struct blocks blocks;
    unsigned long long value;
    int error = MPI_SUCCESS;
    *hints = (struct ramlace_hints)RAMLACE_HINTS_INIT;
    if (hint(info, "striping_factor", &value) && value > 0 && value <= RAMLACE_VERSION_LANES)
        hints->width = (uint32_t)value;
    bool named = named_unit(info, &value);
    hints->stripe_unit = named ? value : unit_of_blocks(info);
    if (placing->near && one_machine) {
        hints->local = 1;
    } else if (placing->near && blocks_of(info, &blocks) && blocks.count <= PARTS_MAX) {
        error = wish_parts(placing, &blocks);
        hints->parts = placing->parts;
        hints->part_count = blocks.count;
        /* The unit is chosen with the servers, unless the program names one. */
        hints->stripe_unit = named ? value : 0;
    } else if (hint(info, "start_iodevice", &value) && value < UINT16_MAX) {
        hints->first_server = (uint32_t)value + 1;
    }
    return error;
}
