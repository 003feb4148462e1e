/* What programs on several machines see of each other: small races, run again and again, each with its own processes.
 *
 *   litmus TEST RUNS CALLS PATH PATH [PATH]
 *
 * The paths are one file, on two or three mounts. What CALLS names is done with each store and load: msync, a refresh, or nothing. On the third
 * mount somebody else looks at the same pages all the time, and sees no number go back. A run's outcome is a word of what was seen
 * of the run's own stores, 1 for new and 0 for old; each word is printed with how often it came. Runs store their number,
 * so that nothing has to be set back between them.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 64, CREW_MAX = 4, SEEN_MAX = 4 };

typedef _Atomic uint64_t cell;

/* What the crew of a test shares beside the file. */
struct shared {
    atomic_int is_over, has_failed;
    atomic_uint arrived, round;
    uint64_t seen[CREW_MAX][SEEN_MAX];
};

struct member {
    int number;
    const char *path;
    int file;
    unsigned char *memory;
};

static struct shared *shared;
static unsigned crew;
static int publishes, refreshes;
static const char *paths[3];
static int machines;

/* The others end, too: they would wait for this one for ever. */
static void end_run(int status)
{
    if (shared)
        atomic_store(&shared->has_failed, 1);
    _exit(status);
}

static void fail(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    end_run(1);
}

static void check(int holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "wrong: %s\n", what);
        end_run(3);
    }
}

/* All begin a step at once. */
static void together(void)
{
    unsigned round = atomic_load(&shared->round);
    if (atomic_fetch_add(&shared->arrived, 1) + 1 == crew) {
        atomic_store(&shared->arrived, 0);
        atomic_store(&shared->round, round + 1);
    } else {
        while (atomic_load(&shared->round) == round) {
            if (atomic_load(&shared->has_failed))
                end_run(5);
            sched_yield();
        }
    }
}

/* Runs differ in which member is first. */
static void dawdle(unsigned *seed)
{
    unsigned steps = (unsigned)rand_r(seed) % 2000;
    for (volatile unsigned step = 0; step < steps; step++)
        ;
}

static cell *at(struct member *me, int page, int place)
{
    return (cell *)(me->memory + page * PAGE + place * 8);
}

static void publish(void *address)
{
    if (publishes && msync((void *)((uintptr_t)address & ~(uintptr_t)(PAGE - 1)), PAGE, MS_SYNC))
        fail("msync");
}

static void put(cell *place, uint64_t value)
{
    atomic_store(place, value);
    publish(place);
}

static int is_new(cell *place, uint64_t run)
{
    return atomic_load(place) >= run;
}

/* Message passing: data, then a flag; a member that sees the flag sees the data. */
static void mp(struct member *me, uint64_t run, uint64_t *seen)
{
    if (me->number == 0) {
        put(at(me, 0, 0), run);
        put(at(me, 1, 0), run);
    } else {
        seen[0] = is_new(at(me, 1, 0), run);
        seen[1] = is_new(at(me, 0, 0), run);
    }
}

/* Store buffering: each stores and looks at the other's. */
static void sb(struct member *me, uint64_t run, uint64_t *seen)
{
    put(at(me, me->number, 0), run);
    seen[0] = is_new(at(me, !me->number, 0), run);
}

/* Load buffering: each looks at the other's and stores. */
static void lb(struct member *me, uint64_t run, uint64_t *seen)
{
    seen[0] = is_new(at(me, !me->number, 0), run);
    put(at(me, me->number, 0), run);
}

/* Two independent stores, and two members that look at both: do they agree on which was first? */
static void iriw(struct member *me, uint64_t run, uint64_t *seen)
{
    int mine = me->number % 2;
    if (me->number < 2) {
        put(at(me, mine, 0), run);
    } else {
        seen[0] = is_new(at(me, mine, 0), run);
        seen[1] = is_new(at(me, !mine, 0), run);
    }
}

/* What one has seen and answered, a third sees as well. */
static void wrc(struct member *me, uint64_t run, uint64_t *seen)
{
    if (me->number == 0) {
        put(at(me, 0, 0), run);
    } else if (me->number == 1) {
        seen[0] = is_new(at(me, 0, 0), run);
        put(at(me, 1, 0), seen[0] ? run : run - 1);
    } else {
        seen[0] = is_new(at(me, 1, 0), run);
        seen[1] = is_new(at(me, 0, 0), run);
    }
}

/* One place, seen twice: never new and then old. */
static void corr(struct member *me, uint64_t run, uint64_t *seen)
{
    if (me->number == 0) {
        put(at(me, 0, 0), run);
    } else {
        seen[0] = is_new(at(me, 0, 0), run);
        seen[1] = is_new(at(me, 0, 0), run);
    }
}

/* Own stores are seen at once, whatever others do to the same page. */
static void own(struct member *me, uint64_t run, uint64_t *seen)
{
    put(at(me, 0, me->number), run);
    seen[0] = atomic_load(at(me, 0, me->number)) == run;
}

/* Brings what others have published, where that takes a call. */
static void refresh(struct member *me)
{
    char value[16];
    if (refreshes && fgetxattr(me->file, "user.ramlace.refresh", value, sizeof value) < 0)
        fail("refresh");
}

/* Both store every other byte of a page: whose are missing when both have published? */
static void neighbours(struct member *me, uint64_t run, uint64_t *seen)
{
    for (int byte = me->number; byte < PAGE; byte += 2)
        me->memory[byte] = (unsigned char)run;
    if (msync(me->memory, PAGE, MS_SYNC))
        fail("msync");
    together();
    refresh(me);
    seen[0] = 1;
    for (int byte = 0; byte < PAGE; byte++)
        seen[0] &= me->memory[byte] == (unsigned char)run;
}

/* One stores into a page by a mapping, the other writes into it by pwrite. */
static void mapwrite(struct member *me, uint64_t run, uint64_t *seen)
{
    if (me->number == 0) {
        for (int place = 0; place < 8; place++)
            atomic_store(at(me, 0, 2 * place), run);
        if (msync(me->memory, PAGE, MS_SYNC))
            fail("msync");
    } else {
        for (int place = 0; place < 8; place++)
            if (pwrite(me->file, &run, 8, (2 * place + 1) * 8) != 8)
                fail("pwrite");
    }
    together();
    refresh(me);
    seen[0] = 1;
    for (int place = 0; place < 16; place++)
        seen[0] &= atomic_load(at(me, 0, place)) == run;
}

static sigjmp_buf gone;
static volatile sig_atomic_t may_be_gone;

static void is_gone(int signal)
{
    static const char said[] = "SIGBUS: a page is gone that none has cut off\n";
    (void)signal;
    if (!may_be_gone) {
        /* The exit status says it where this cannot be written. */
        ssize_t written = write(STDERR_FILENO, said, sizeof said - 1);
        (void)written;
        end_run(4);
    }
    siglongjmp(gone, 1);
}

/* One stores into a page, the other cuts it off and makes the file longer again: what was stored before the cut does not come
 * back. */
static void mapcut(struct member *me, uint64_t run, uint64_t *seen)
{
    if (me->number == 0) {
        may_be_gone = 1;
        if (!sigsetjmp(gone, 1))
            atomic_store(at(me, 1, 0), 2 * run + 1);
        may_be_gone = 0;
    } else {
        if (ftruncate(me->file, PAGE) || ftruncate(me->file, PAGES * PAGE))
            fail("ftruncate");
    }
    together();
    /* A kernel learns of a file's size when it is asked for it. */
    struct stat now;
    if (fstat(me->file, &now) || now.st_size != PAGES * PAGE)
        fail("fstat");
    uint64_t there = atomic_load(at(me, 1, 0));
    seen[0] = there == 0 || there == 2 * run + 1;
    together();
    if (me->number == 0) {
        atomic_store(at(me, 1, 0), 2 * run);
        if (msync(me->memory + PAGE, PAGE, MS_SYNC))
            fail("msync");
    }
}

/* Records that are appended lie one behind the other. */
static void append(struct member *me, uint64_t run, uint64_t *seen)
{
    char name[4096];
    snprintf(name, sizeof name, "%s.append", me->path);
    int file = open(name, O_RDWR | O_CREAT | O_APPEND, 0600);
    if (file < 0)
        fail(name);
    uint64_t record[4];
    for (int word = 0; word < 4; word++)
        record[word] = 2 * run + (uint64_t)me->number;
    if (write(file, record, sizeof record) != sizeof record)
        fail("append");
    together();
    uint64_t back[8] = {0};
    seen[0] = pread(file, back, sizeof back, (off_t)((run - 1) * sizeof back)) == (ssize_t)sizeof back;
    for (int word = 0; word < 8; word++)
        seen[0] &= back[word] == back[word & ~3] && back[word] / 2 == run;
    seen[0] &= back[0] != back[4];
    close(file);
}

/* One of two makes a name that is not there. */
static void excl(struct member *me, uint64_t run, uint64_t *seen)
{
    char name[4096];
    snprintf(name, sizeof name, "%s.excl%lu", me->path, (unsigned long)run);
    int file = open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
    if (file < 0 && errno != EEXIST)
        fail(name);
    seen[0] = file >= 0;
    if (file >= 0)
        close(file);
    together();
    if (me->number == 0)
        unlink(name);
}

/* Two names become one. */
static void move(struct member *me, uint64_t run, uint64_t *seen)
{
    char from[4096], to[4096], other[4096];
    snprintf(from, sizeof from, "%s.from%d", me->path, me->number);
    snprintf(other, sizeof other, "%s.from%d", me->path, !me->number);
    snprintf(to, sizeof to, "%s.to", me->path);
    uint64_t mark = 2 * run + (uint64_t)me->number;
    int file = open(from, O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (file < 0 || write(file, &mark, 8) != 8)
        fail(from);
    close(file);
    together();
    if (rename(from, to))
        fail("rename");
    together();
    file = open(to, O_RDONLY);
    seen[0] = file >= 0 && read(file, &mark, 8) == 8 && mark / 2 == run;
    seen[0] &= access(from, F_OK) && access(other, F_OK);
    if (file >= 0)
        close(file);
}

/* A number that is counted up under a lock, by read and write and in the mapping. */
static void lock(struct member *me, uint64_t run, uint64_t *seen)
{
    struct flock range = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 2 * PAGE, .l_len = 8};
    uint64_t number;
    if (fcntl(me->file, F_SETLKW, &range))
        fail("lock");
    if (pread(me->file, &number, 8, 2 * PAGE) != 8)
        fail("pread");
    number++;
    if (pwrite(me->file, &number, 8, 2 * PAGE) != 8)
        fail("pwrite");
    atomic_store(at(me, 3, 0), atomic_load(at(me, 3, 0)) + 1);
    publish(at(me, 3, 0));
    range.l_type = F_UNLCK;
    if (fcntl(me->file, F_SETLK, &range))
        fail("unlock");
    together();
    if (pread(me->file, &number, 8, 2 * PAGE) != 8)
        fail("pread");
    seen[0] = number == 2 * run;
    seen[1] = atomic_load(at(me, 3, 0)) == 2 * run;
}

/* Programs of many steps, which check what they see; a run of theirs is one step. */

static void spin(struct member *me, uint64_t run, uint64_t *seen)
{
    cell *locked = at(me, 0, 0), *count = at(me, 0, 1);
    while (atomic_exchange(locked, 1))
        sched_yield();
    uint64_t before = atomic_load_explicit(count, memory_order_relaxed);
    atomic_store_explicit(count, before + 1, memory_order_relaxed);
    atomic_store(locked, 0);
    (void)run;
    seen[0] = 1;
}

static void spin_end(struct member *me, uint64_t runs)
{
    check(atomic_load(at(me, 0, 1)) == runs * crew, "the lock did not protect its counter");
}

enum { RING = 100 };

static void ring(struct member *me, uint64_t run, uint64_t *seen)
{
    cell *head = at(me, 0, 0), *tail = at(me, 1, 0), *slot = at(me, 2, (int)(run % RING));
    if (me->number == 0) {
        while (run - atomic_load(tail) > RING)
            sched_yield();
        atomic_store_explicit(slot, run * run, memory_order_relaxed);
        atomic_store(head, run);
    } else {
        while (atomic_load(head) < run)
            sched_yield();
        check(atomic_load_explicit(slot, memory_order_relaxed) == run * run, "the ring gave another item");
        atomic_store(tail, run);
    }
    seen[0] = 1;
}

/* Each has a number of its own in each of the places, which only grows. */
static void places(struct member *me, uint64_t run, uint64_t *seen)
{
    static uint64_t last[16][CREW_MAX];
    static unsigned seed;
    if (run == 1)
        seed = (unsigned)me->number + 1;
    int page = rand_r(&seed) % 16;
    cell *mine = at(me, page, me->number);
    check(atomic_load(mine) == last[page][me->number], "an own number is another");
    last[page][me->number] = run;
    atomic_store(mine, run);
    for (unsigned other = 0; other < crew; other++) {
        uint64_t there = atomic_load(at(me, page, (int)other));
        check(there >= last[page][other], "a number went back");
        last[page][other] = there;
    }
    seen[0] = 1;
}

static const struct {
    const char *name;
    unsigned crew;
    int seen[CREW_MAX];
    /* Each run begins together. */
    int in_step;
    /* The first words of its first two pages are numbers that only grow. */
    int grows;
    void (*step)(struct member *, uint64_t, uint64_t *);
    void (*end)(struct member *, uint64_t);
} tests[] = {
    {"mp", 2, {0, 2}, 1, 1, mp, 0},
    {"sb", 2, {1, 1}, 1, 1, sb, 0},
    {"lb", 2, {1, 1}, 1, 1, lb, 0},
    {"iriw", 4, {0, 0, 2, 2}, 1, 1, iriw, 0},
    {"wrc", 3, {0, 1, 2}, 1, 1, wrc, 0},
    {"corr", 2, {0, 2}, 1, 1, corr, 0},
    {"own", 2, {1, 1}, 1, 1, own, 0},
    {"neighbours", 2, {1, 1}, 1, 0, neighbours, 0},
    {"mapwrite", 2, {1, 1}, 1, 0, mapwrite, 0},
    {"mapcut", 2, {1, 1}, 1, 0, mapcut, 0},
    {"append", 2, {1, 1}, 1, 0, append, 0},
    {"excl", 2, {1, 1}, 1, 0, excl, 0},
    {"rename", 2, {1, 1}, 1, 0, move, 0},
    {"lock", 2, {2, 2}, 1, 0, lock, 0},
    {"spin", 2, {1, 1}, 0, 0, spin, spin_end},
    {"ring", 2, {1, 1}, 0, 0, ring, 0},
    {"places", 4, {1, 1, 1, 1}, 0, 0, places, 0},
};
enum { TESTS = sizeof tests / sizeof *tests };

static void play(unsigned test, int number, uint64_t runs, unsigned *counts)
{
    struct member me = {.number = number, .path = paths[number % machines]};
    me.file = open(me.path, O_RDWR);
    if (me.file < 0)
        fail(me.path);
    me.memory = mmap(0, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, me.file, 0);
    if (me.memory == MAP_FAILED)
        fail("mmap");
    unsigned seed = (unsigned)number + 77;
    together();
    for (uint64_t run = 1; run <= runs; run++) {
        if (tests[test].in_step) {
            together();
            dawdle(&seed);
        }
        tests[test].step(&me, run, shared->seen[number]);
        if (!tests[test].in_step)
            continue;
        together();
        if (number == 0) {
            unsigned word = 0;
            for (unsigned one = 0; one < crew; one++)
                for (int part = 0; part < tests[test].seen[one]; part++)
                    word = word << 1 | (shared->seen[one][part] != 0);
            counts[word]++;
        }
    }
    together();
    if (tests[test].end)
        tests[test].end(&me, runs);
}

/* Somebody on another machine looks at the first pages again and again. */
static void watch(unsigned test)
{
    /* Also when the others end early. */
    if (prctl(PR_SET_PDEATHSIG, SIGKILL))
        fail("prctl");
    int file = open(paths[2], O_RDONLY);
    if (file < 0)
        fail(paths[2]);
    cell *memory = mmap(0, PAGES * PAGE, PROT_READ, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED)
        fail("mmap");
    uint64_t last[4] = {0};
    while (!atomic_load(&shared->is_over)) {
        for (int page = 0; page < 4; page++) {
            volatile uint64_t now = 0;
            may_be_gone = 1;
            if (!sigsetjmp(gone, 1))
                now = atomic_load(memory + page * PAGE / 8);
            may_be_gone = 0;
            check(!tests[test].grows || now >= last[page], "a number went back for who only looks");
            last[page] = now;
        }
        usleep(50);
    }
}

int main(int argc, char **argv)
{
    unsigned test = 0, bits = 0, counts[1 << CREW_MAX] = {0};
    machines = argc - 4;
    int is_asked = machines == 2 || machines == 3;
    while (is_asked && test < TESTS && strcmp(tests[test].name, argv[1]))
        test++;
    if (!is_asked || test == TESTS) {
        fprintf(stderr, "usage: litmus TEST RUNS CALLS PATH PATH [PATH]\n");
        return 2;
    }
    uint64_t runs = strtoull(argv[2], 0, 10);
    publishes = !strcmp(argv[3], "publishes");
    refreshes = !strcmp(argv[3], "refreshes");
    for (int machine = 0; machine < machines; machine++)
        paths[machine] = argv[4 + machine];
    crew = tests[test].crew;
    for (unsigned one = 0; one < crew; one++)
        bits += (unsigned)tests[test].seen[one];
    shared = mmap(0, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        fail("mmap");
    signal(SIGBUS, is_gone);
    pid_t others[CREW_MAX] = {0}, watcher = 0;
    if (machines == 3) {
        watcher = fork();
        if (watcher < 0)
            fail("fork");
        if (watcher == 0) {
            watch(test);
            return 0;
        }
    }
    for (unsigned one = 1; one < crew; one++) {
        others[one] = fork();
        if (others[one] < 0)
            fail("fork");
        if (others[one] == 0) {
            play(test, (int)one, runs, counts);
            return 0;
        }
    }
    play(test, 0, runs, counts);
    for (unsigned one = 1; one < crew; one++) {
        int status;
        if (waitpid(others[one], &status, 0) < 0 || status)
            return 3;
    }
    atomic_store(&shared->is_over, 1);
    int status;
    if (watcher && (waitpid(watcher, &status, 0) < 0 || status))
        return 3;
    for (unsigned word = 0; word < 1U << bits; word++) {
        if (!counts[word])
            continue;
        for (unsigned bit = bits; bit-- > 0;)
            putchar('0' + (int)(word >> bit & 1));
        printf(" %u\n", counts[word]);
    }
    return 0;
}
