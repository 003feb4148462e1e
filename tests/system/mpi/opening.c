/* Opening files together: what one rank cannot do, and where a new file's bytes are wanted. The program stands between the MPI-IO
 * library and what it calls, the C library and MPI, as faults.c does.
 *
 * usage: opening CASE FILE, 2 ranks, each case as its function says */
#define _GNU_SOURCE
#include "two_ranks.h"

#include "../../../crates/capi/include/ramlace.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

/* What the last open has asked for. */
static uint32_t wished_local;
static uint64_t wished_parts;
/* What the parts of an open are held to; then it goes on without them. */
static void (*look_at_parts)(const struct ramlace_part *parts, uint64_t count);
/* A rank gets no communicator of its own, and no message through to the first. */
static bool no_communicator, no_gather;
/* Ranks seem to be on machines of their own, and so many to be in the world. */
static bool own_machines;
static int seeming_ranks;

struct ramlace_file *ramlace_open_with(struct ramlace_pool *pool, const char *name, int flags, uint32_t mode,
                                       const struct ramlace_hints *hints)
{
    struct ramlace_file *(*real)(struct ramlace_pool *, const char *, int, uint32_t, const struct ramlace_hints *) =
        dlsym(RTLD_NEXT, "ramlace_open_with");
    struct ramlace_hints wished = RAMLACE_HINTS_INIT;
    if (hints != NULL)
        wished = *hints;
    wished_local = wished.local;
    wished_parts = wished.part_count;
    if (look_at_parts != NULL) {
        look_at_parts(wished.parts, wished.part_count);
        wished.parts = NULL;
        wished.part_count = 0;
    }
    return real(pool, name, flags, mode, hints ? &wished : NULL);
}

/* The machine of the rank of this number, where each has its own. */
static void machine_of(int number, unsigned char *machine)
{
    memset(machine, 0, 16);
    memcpy(machine, &number, sizeof number);
    machine[15] = 1;
}

int ramlace_machine(uint8_t *machine, size_t size)
{
    int (*real)(uint8_t *, size_t) = dlsym(RTLD_NEXT, "ramlace_machine");
    if (!own_machines)
        return real(machine, size);
    machine_of(rank, machine);
    return 0;
}

int PMPI_Comm_size(MPI_Comm comm, int *size)
{
    int (*real)(MPI_Comm, int *) = dlsym(RTLD_NEXT, "PMPI_Comm_size");
    int code = real(comm, size);
    if (comm == MPI_COMM_WORLD && seeming_ranks != 0)
        *size = seeming_ranks;
    return code;
}

int PMPI_Gather(const void *from, int count, MPI_Datatype type, void *into, int counts, MPI_Datatype types, int root,
                MPI_Comm comm)
{
    int (*real)(const void *, int, MPI_Datatype, void *, int, MPI_Datatype, int, MPI_Comm) =
        dlsym(RTLD_NEXT, "PMPI_Gather");
    int code = real(from, count, type, into, counts, types, root, comm);
    for (int number = 0; number < seeming_ranks && rank == root && counts == 16; number++)
        machine_of(number, (unsigned char *)into + (size_t)number * 16);
    return no_gather ? MPI_ERR_NO_MEM : code;
}

int PMPI_Comm_idup(MPI_Comm comm, MPI_Comm *copy, MPI_Request *request)
{
    int (*real)(MPI_Comm, MPI_Comm *, MPI_Request *) = dlsym(RTLD_NEXT, "PMPI_Comm_idup");
    int code = real(comm, copy, request);
    if (no_communicator && code == MPI_SUCCESS)
        MPI_Wait(request, MPI_STATUS_IGNORE);
    return no_communicator ? MPI_ERR_NO_MEM : code;
}

/* ---- Ranks that cannot ---- */

/* Ranks of two groups cannot have a file together. */
static void test_two_groups(void)
{
    MPI_Comm own, both;
    MPI_File file = open_new(NULL), refused;
    CALL(MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &own));
    CALL(MPI_Intercomm_create(own, 0, MPI_COMM_WORLD, 1 - rank % 2, 1, &both));
    REFUSED(MPI_File_open(both, path, MPI_MODE_RDWR | MPI_MODE_CREATE, MPI_INFO_NULL, &refused), MPI_ERR_COMM);
    CALL(MPI_Comm_free(&both));
    CALL(MPI_Comm_free(&own));
    CALL(MPI_File_close(&file));
}

/* Where one rank has no descriptor for a file, all get an error, and nobody has made one. */
static void test_no_descriptor(void)
{
    char name[1024];
    struct rlimit usual, none;
    MPI_File file = open_new(NULL), refused;
    snprintf(name, sizeof name, "%s-refused", path);
    CHECK(getrlimit(RLIMIT_NOFILE, &usual) == 0);
    int next = open("/dev/null", O_RDONLY);
    CHECK(next >= 0 && close(next) == 0);
    none = (struct rlimit){(rlim_t)next, usual.rlim_max};
    CHECK(rank != 1 || setrlimit(RLIMIT_NOFILE, &none) == 0);
    int code = MPI_File_open(MPI_COMM_WORLD, name, MPI_MODE_RDWR | MPI_MODE_CREATE, MPI_INFO_NULL, &refused);
    CHECK(setrlimit(RLIMIT_NOFILE, &usual) == 0);
    CHECK(code != MPI_SUCCESS && refused == MPI_FILE_NULL);
    REFUSED(MPI_File_open(MPI_COMM_WORLD, name, MPI_MODE_RDWR, MPI_INFO_NULL, &refused), MPI_ERR_NO_SUCH_FILE);
    CALL(MPI_File_close(&file));
}

/* Where one rank has no communicator for a file, no other waits in the one that it has got. */
static void test_no_communicator(void)
{
    char name[1024];
    MPI_File refused, file = open_new(NULL);
    /* Its handle is used again: the next one needs nothing of the MPI library's own. */
    CALL(MPI_File_close(&file));
    snprintf(name, sizeof name, "%s-refused", path);
    no_communicator = rank == 1;
    int code = MPI_File_open(MPI_COMM_WORLD, name, MPI_MODE_RDWR | MPI_MODE_CREATE, MPI_INFO_NULL, &refused);
    no_communicator = false;
    CHECK(refused == MPI_FILE_NULL);
    REFUSED(code, MPI_ERR_NO_MEM);
    REFUSED(MPI_File_open(MPI_COMM_WORLD, name, MPI_MODE_RDWR, MPI_INFO_NULL, &refused), MPI_ERR_NO_SUCH_FILE);
    file = open_new(NULL);
    CALL(MPI_File_close(&file));
}

/* The same path in two pools (FILE is both names, with a space between): no file that ranks have together. */
static void test_two_pools(void)
{
    char *names = strdup(path), *other = strchr(names, ' ');
    MPI_File file;
    CHECK(other != NULL);
    *other++ = '\0';
    int amode = MPI_MODE_RDWR | MPI_MODE_CREATE;
    REFUSED(MPI_File_open(MPI_COMM_WORLD, rank == 0 ? names : other, amode, MPI_INFO_NULL, &file), MPI_ERR_NOT_SAME);
    /* Nobody has made it; and each pool is one for all. */
    REFUSED(MPI_File_open(MPI_COMM_WORLD, names, MPI_MODE_RDONLY, MPI_INFO_NULL, &file), MPI_ERR_NO_SUCH_FILE);
    REFUSED(MPI_File_open(MPI_COMM_WORLD, other, MPI_MODE_RDONLY, MPI_INFO_NULL, &file), MPI_ERR_NO_SUCH_FILE);
    CALL(MPI_File_open(MPI_COMM_WORLD, other, amode, MPI_INFO_NULL, &file));
    CALL(MPI_File_close(&file));
    free(names);
}

/* ---- Where bytes are wanted ---- */

/* A new file begins on the server that its hint names, and says so. */
static void test_first_server(void)
{
    const char *const wishes[] = {"0", "1", "2", "0"};
    char text[64];
    int found;
    MPI_Info info;
    for (size_t i = 0; i < sizeof wishes / sizeof *wishes; i++) {
        if (rank == 0 && i > 0)
            CALL(MPI_File_delete(path, MPI_INFO_NULL));
        MPI_Barrier(MPI_COMM_WORLD);
        MPI_File file = open_as(path, MPI_MODE_RDWR | MPI_MODE_CREATE, NULL, "start_iodevice", wishes[i]);
        CALL(MPI_File_get_info(file, &info));
        CALL(MPI_Info_get(info, "start_iodevice", 63, text, &found));
        CHECK(found && strcmp(text, wishes[i]) == 0);
        CALL(MPI_Info_free(&info));
        CALL(MPI_File_close(&file));
    }
    /* What makes no sense is no wish. */
    MPI_File file = open_as(path, MPI_MODE_RDWR, NULL, "start_iodevice", "first");
    CALL(MPI_File_close(&file));
}

/* What is asked for where a file's bytes are to lie is the first rank's, and is told by nobody. */
static void test_placement(void)
{
    const struct {
        const char *choice[2];
        uint32_t wished;
    } cases[] = {{{"local", "local"}, 1}, {{"local", "usual"}, 1}, {{"usual", "local"}, 0}, {{"usual", "usual"}, 0}};
    char text[64];
    int found;
    MPI_Info info;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (rank == 0 && i > 0)
            CALL(MPI_File_delete(path, MPI_INFO_NULL));
        MPI_Barrier(MPI_COMM_WORLD);
        MPI_File file = open_as(path, MPI_MODE_RDWR | MPI_MODE_CREATE, NULL, "placement", cases[i].choice[rank != 0]);
        CHECK(rank != 0 || wished_local == cases[i].wished);
        CALL(MPI_File_get_info(file, &info));
        CALL(MPI_Info_get(info, "placement", 63, text, &found));
        CHECK(!found);
        CALL(MPI_Info_free(&info));
        CALL(MPI_File_close(&file));
    }
}

/* An array's blocks, wanted near the ranks that have them. */
static MPI_File open_near(const char *name, const char *array, const char *block)
{
    MPI_Info info;
    MPI_File file;
    CALL(MPI_Info_create(&info));
    CALL(MPI_Info_set(info, "placement", "local"));
    CALL(MPI_Info_set(info, "chunked", array));
    CALL(MPI_Info_set(info, "chunked_size", block));
    CALL(MPI_File_open(MPI_COMM_WORLD, name, MPI_MODE_RDWR | MPI_MODE_CREATE, info, &file));
    CALL(MPI_Info_free(&info));
    return file;
}

/* A rank that cannot say where it runs, or cannot learn it, costs a wish and no file: nobody waits for it. */
static void test_no_gather(void)
{
    char name[1024];
    own_machines = true;
    /* None fails, the last one does, the first one does, which alone wishes. */
    for (int failing = 2; failing >= 0; failing--) {
        snprintf(name, sizeof name, "%s-%d", path, failing);
        no_gather = rank == failing;
        MPI_File file = open_near(name, "2097152,1", "1048576,1");
        CHECK(rank != 0 || wished_parts == (failing == 0 ? 0 : 2));
        CALL(MPI_File_close(&file));
    }
}

enum { SEEMING = 1024, ACROSS = 1023, ROWS = 65536 };
static uint64_t parts_seen;

/* Of a row's blocks no machine has more than another: the first one's it is. */
static void look_at_many(const struct ramlace_part *parts, uint64_t count)
{
    unsigned char machine[16];
    for (uint64_t i = 0; i < count; i++) {
        machine_of((int)(i * ACROSS % SEEMING), machine);
        CHECK(memcmp(parts[i].machine, machine, sizeof machine) == 0);
    }
    parts_seen += count;
}

/* As many machines and rows as there may be: the others wait for the first rank's answer. */
static void test_many_machines(void)
{
    own_machines = true;
    seeming_ranks = rank == 0 ? SEEMING : 0;
    look_at_parts = look_at_many;
    MPI_File file = open_near(path, "1048576,1047552", "16,1024");
    look_at_parts = NULL;
    CHECK(rank != 0 || parts_seen == ROWS);
    CALL(MPI_File_close(&file));
}

/* Whether a file tells on which server it begins. */
static bool tells_first_server(MPI_File file, const char *server)
{
    char text[64];
    int found;
    MPI_Info info;
    CALL(MPI_File_get_info(file, &info));
    CALL(MPI_Info_get(info, "start_iodevice", 63, text, &found));
    CALL(MPI_Info_free(&info));
    return found && strcmp(text, server) == 0;
}

/* A file whose name is another's by now tells nothing of that one. */
static void test_named_anew(void)
{
    const int amode = MPI_MODE_RDWR | MPI_MODE_CREATE;
    MPI_File old = open_as(path, amode, NULL, "start_iodevice", "1");
    CHECK(tells_first_server(old, "1"));
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0)
        CALL(MPI_File_delete(path, MPI_INFO_NULL));
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_File new = open_as(path, amode, NULL, "start_iodevice", "0");
    CHECK(tells_first_server(new, "0") && !tells_first_server(old, "0") && !tells_first_server(old, "1"));
    CALL(MPI_File_close(&new));
    CALL(MPI_File_close(&old));
}

int main(int argc, char **argv)
{
    static const struct one_case cases[] = {
        {"two_groups", test_two_groups},
        {"no_descriptor", test_no_descriptor},
        {"no_communicator", test_no_communicator},
        {"two_pools", test_two_pools},
        {"first_server", test_first_server},
        {"placement", test_placement},
        {"no_gather", test_no_gather},
        {"many_machines", test_many_machines},
        {"named_anew", test_named_anew},
        {NULL, NULL},
    };
    return run_case(argc, argv, cases);
}
