/* Every kind of call on two mounts of one file at once, while pages of it change sides: nothing may wait for ever, and no byte may be wrong.
 *
 *   waits MODE MILLIS BOUND_MILLIS COPIES DIRECTORY DIRECTORY
 *
 * Both directories are one, on two mounts. Each mount has a process, with COPIES threads for each kind of call. A call that takes longer
 * than the bound is named, and ends the program with 2; what is wrong ends it with 3.
 *
 * The file's first pages have a word in each page for each thread that writes, which it alone changes and always makes larger: a thread that
 * reads a word knows which values it can have. What is known of words is in memory that both processes share. Behind them each process has
 * pages of its own in which it makes holes, and at the end are pages that one process cuts off and the other watches.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

enum {
    PAGE = 4096,
    /* Pages with a word of each writer. */
    WORDS = 16,
    /* Pages with holes, of both processes. */
    HOLES = 16,
    /* Pages that are cut off. */
    CUT = 8,
    /* Pages that are read ahead. */
    AHEAD = 128,
    WRITERS_MAX = 256,
    WORKERS_MAX = 1024,
    FIRST_HOLE = WORDS,
    FIRST_AHEAD = WORDS + HOLES,
    FIRST_CUT = WORDS + HOLES + AHEAD,
    PAGES = FIRST_CUT + CUT,
};

enum mode { RELAXED, COHERENT, STRICT };

typedef _Atomic uint64_t cell;

/* Of one word: the largest value that was begun, and the largest that everybody must see. */
struct word {
    cell begun, seen;
};

struct shared {
    struct word words[WRITERS_MAX][WORDS];
    /* The largest number that was in the cut pages when they were last cut off. */
    cell cut;
    _Atomic int stop, failed;
};

struct worker;
typedef void step(struct worker *);

struct worker {
    const char *kind;
    step *step;
    int number, side;
    /* Which words are its own; -1: none. */
    int writer;
    unsigned seed;
    _Atomic int64_t began;
    _Atomic int64_t slowest;
    _Atomic long count;
};

static struct shared *shared;
static enum mode mode;
static int side, writers;
static int64_t bound;
static char path[4096], other[4200];
static int file, direct, reading;
static unsigned char *memory;
static struct worker workers[WORKERS_MAX];
static int worker_count;
static _Thread_local sigjmp_buf *volatile trap;

static int64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000LL + time.tv_nsec / 1000000;
}

__attribute__((format(printf, 1, 2), noreturn)) static void wrong(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    flockfile(stdout);
    printf("wrong on side %d: ", side);
    vprintf(format, arguments);
    printf("\n");
    fflush(stdout);
    va_end(arguments);
    atomic_store(&shared->failed, 3);
    _exit(3);
}

static void need(int holds, const char *what)
{
    if (!holds)
        wrong("%s: %s", what, strerror(errno));
}

static void on_bus(int number)
{
    if (trap)
        siglongjmp(*trap, 1);
    static const char text[] = "wrong: a load or a store is SIGBUS\n";
    (void)number;
    ssize_t told = write(1, text, sizeof text - 1);
    (void)told;
    atomic_store(&shared->failed, 3);
    _exit(3);
}

static cell *word_in(unsigned char *pages, int writer, int page)
{
    return (cell *)(pages + page * PAGE + writer * 8);
}

static int random_of(struct worker *me, int below)
{
    return rand_r(&me->seed) % below;
}

static void raise_to(cell *word, uint64_t value)
{
    uint64_t had = atomic_load(word);
    while (had < value && !atomic_compare_exchange_weak(word, &had, value))
        ;
}

/* What must be seen of a word, at least, by a thread that looks now; on relaxed mounts nothing. */
static uint64_t least(int writer, int page)
{
    return mode == RELAXED ? 0 : atomic_load(&shared->words[writer][page].seen);
}

static void check(int writer, int page, uint64_t least, uint64_t found, const char *how)
{
    uint64_t most = atomic_load(&shared->words[writer][page].begun);
    if (found < least || found > most)
        wrong("%s finds %llu in page %d of writer %d, which is from %llu to %llu", how, (unsigned long long)found, page, writer,
              (unsigned long long)least, (unsigned long long)most);
}

static uint64_t begin_value(struct worker *me, int page)
{
    return atomic_fetch_add(&shared->words[me->writer][page].begun, 1) + 1;
}

/* A store, and in one of four cases its publication. */
static void store(struct worker *me)
{
    int page = random_of(me, WORDS);
    uint64_t value = begin_value(me, page);
    atomic_store(word_in(memory, me->writer, page), value);
    if (mode == STRICT)
        raise_to(&shared->words[me->writer][page].seen, value);
    if (random_of(me, 4) == 0) {
        need(msync(memory + page * PAGE, PAGE, MS_SYNC) == 0, "msync");
        raise_to(&shared->words[me->writer][page].seen, value);
    }
}

static void load(struct worker *me)
{
    int page = random_of(me, WORDS), writer = random_of(me, writers);
    uint64_t at_least = least(writer, page);
    check(writer, page, at_least, atomic_load(word_in(memory, writer, page)), "a load");
}

static void call_read(struct worker *me)
{
    int page = random_of(me, WORDS), writer = random_of(me, writers);
    uint64_t at_least = least(writer, page), found = 0;
    int from = random_of(me, 2) ? file : reading;
    need(pread(from, &found, 8, page * PAGE + writer * 8) == 8, "pread");
    check(writer, page, at_least, found, "pread");
}

static void call_write(struct worker *me)
{
    int page = random_of(me, WORDS);
    uint64_t value = begin_value(me, page);
    need(pwrite(file, &value, 8, page * PAGE + me->writer * 8) == 8, "pwrite");
    raise_to(&shared->words[me->writer][page].seen, value);
}

/* A call for several pages, some of which others have. */
static void call_vector(struct worker *me)
{
    static _Thread_local unsigned char bytes[4 * PAGE];
    int page = random_of(me, WORDS - 3), writer = random_of(me, writers);
    uint64_t at_least[4];
    for (int step = 0; step < 4; step++)
        at_least[step] = least(writer, page + step);
    need(pread(file, bytes, sizeof bytes, page * PAGE) == (ssize_t)sizeof bytes, "pread of several pages");
    for (int step = 0; step < 4; step++)
        check(writer, page + step, at_least[step], *word_in(bytes, writer, step), "pread of several pages");
}

static void read_direct(struct worker *me)
{
    static _Thread_local unsigned char bytes[PAGE] __attribute__((aligned(4096)));
    int page = random_of(me, WORDS), writer = random_of(me, writers);
    uint64_t at_least = least(writer, page);
    need(pread(direct, bytes, PAGE, page * PAGE) == PAGE, "a direct read");
    check(writer, page, at_least, *word_in(bytes, writer, 0), "a direct read");
}

static void sync_file(struct worker *me)
{
    need((random_of(me, 2) ? fsync(file) : fdatasync(file)) == 0, "fsync");
}

static void cut(struct worker *me)
{
    static uint64_t number;
    unsigned char bytes[PAGE];
    number++;
    memset(bytes, 0, PAGE);
    for (int at = 0; at < PAGE; at += 8)
        memcpy(bytes + at, &number, 8);
    int page = FIRST_CUT + random_of(me, CUT);
    need(pwrite(file, bytes, PAGE, (off_t)page * PAGE) == PAGE, "a write of what is cut off");
    need(ftruncate(file, (off_t)FIRST_CUT * PAGE) == 0, "ftruncate down");
    need(ftruncate(file, (off_t)PAGES * PAGE) == 0, "ftruncate up");
    if (mode != RELAXED)
        raise_to(&shared->cut, number);
    need(pread(file, bytes, PAGE, (off_t)page * PAGE) == PAGE, "a read of what was cut off");
    for (int at = 0; at < PAGE; at++)
        if (bytes[at])
            wrong("what was cut off is there again");
}

static void watch_cut(struct worker *me)
{
    off_t at = (off_t)(FIRST_CUT + random_of(me, CUT)) * PAGE + random_of(me, PAGE / 8) * 8;
    uint64_t before = atomic_load(&shared->cut), found = 0;
    if (random_of(me, 2)) {
        ssize_t count = pread(reading, &found, 8, at);
        need(count == 8 || count == 0, "a read at the end");
    } else {
        sigjmp_buf here;
        if (sigsetjmp(here, 1) == 0) {
            trap = &here;
            found = *(volatile uint64_t *)(memory + at);
        }
        trap = NULL;
    }
    if (found && found <= before)
        wrong("%llu of what was cut off is there behind the cut of %llu", (unsigned long long)found, (unsigned long long)before);
}

/* Pages of this process alone: a pattern, a hole, and what is there then. Each thread has one page. */
static void punch(struct worker *me)
{
    unsigned char bytes[PAGE];
    int page = FIRST_HOLE + (2 * me->number + side) % HOLES;
    off_t at = (off_t)page * PAGE;
    memset(bytes, 0x55, PAGE);
    need(pwrite(file, bytes, PAGE, at) == PAGE, "a write of what gets a hole");
    need(fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at, PAGE) == 0, "a punch");
    need(pread(file, bytes, PAGE, at) == PAGE, "a read of a hole");
    for (int place = 0; place < PAGE; place++)
        if (bytes[place])
            wrong("a hole has bytes");
}

static void look_at_holes(struct worker *me)
{
    unsigned char found = *(volatile unsigned char *)(memory + (FIRST_HOLE + random_of(me, HOLES)) * PAGE + random_of(me, PAGE));
    if (found != 0 && found != 0x55)
        wrong("a page of holes and patterns has %d", found);
}

static void map(struct worker *me)
{
    unsigned char *mine = mmap(NULL, WORDS * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    need(mine != MAP_FAILED, "mmap");
    for (int step = 0; step < 4; step++) {
        int page = random_of(me, WORDS);
        uint64_t value = begin_value(me, page);
        atomic_store(word_in(mine, me->writer, page), value);
        if (mode == STRICT)
            raise_to(&shared->words[me->writer][page].seen, value);
    }
    need(munmap(mine, WORDS * PAGE) == 0, "munmap");
}

/* Close publishes. */
static void open_and_close(struct worker *me)
{
    int opened = open(path, random_of(me, 2) ? O_RDWR : O_RDONLY);
    need(opened >= 0, "open");
    int page = random_of(me, WORDS), writer = random_of(me, writers);
    uint64_t at_least = least(writer, page), found = 0;
    need(pread(opened, &found, 8, page * PAGE + writer * 8) == 8, "pread");
    check(writer, page, at_least, found, "pread of a new descriptor");
    need(close(opened) == 0, "close");
}

static void take_lock(struct worker *me)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = random_of(me, WORDS) * PAGE, .l_len = PAGE};
    int opened = open(path, O_RDWR);
    need(opened >= 0, "open for a lock");
    need(fcntl(opened, F_OFD_SETLKW, &lock) == 0, "a lock");
    lock.l_type = F_UNLCK;
    need(fcntl(opened, F_OFD_SETLK, &lock) == 0, "an unlock");
    need(close(opened) == 0, "close of what was locked");
}

static void ask(struct worker *me)
{
    struct statfs space;
    struct stat found;
    (void)me;
    need(statfs(path, &space) == 0, "statfs");
    need(fstat(file, &found) == 0, "fstat");
    if (found.st_size != (off_t)PAGES * PAGE && found.st_size < (off_t)FIRST_CUT * PAGE)
        wrong("the file has %lld bytes", (long long)found.st_size);
}

/* Files that come and go: the kernel forgets them. */
static void forget(struct worker *me)
{
    char name[sizeof other + 32];
    snprintf(name, sizeof name, "%s.%d.%d", other, side, me->number);
    int opened = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
    need(opened >= 0, "create");
    need(pwrite(opened, "forget", 6, 5000) == 6, "a write to a new file");
    need(close(opened) == 0, "close of a new file");
    need(unlink(name) == 0, "unlink");
}

static void read_ahead(struct worker *me)
{
    static _Thread_local unsigned char bytes[16 * PAGE];
    static _Thread_local int next;
    (void)me;
    need(pread(reading, bytes, sizeof bytes, (off_t)(FIRST_AHEAD + next) * PAGE) == (ssize_t)sizeof bytes, "a sequential read");
    next = (next + 16) % AHEAD;
}

static void write_ahead(struct worker *me)
{
    static _Thread_local unsigned char bytes[16 * PAGE];
    int page = FIRST_AHEAD + 16 * random_of(me, AHEAD / 16);
    memset(bytes, side + 1, sizeof bytes);
    need(pwrite(file, bytes, sizeof bytes, (off_t)page * PAGE) == (ssize_t)sizeof bytes, "a large write");
}

static void advise(struct worker *me)
{
    int page = random_of(me, PAGES);
    need(posix_fadvise(reading, (off_t)page * PAGE, 64 * PAGE, random_of(me, 2) ? POSIX_FADV_DONTNEED : POSIX_FADV_WILLNEED) == 0, "fadvise");
}

static const struct {
    const char *name;
    step *step;
    /* Changes words; and on which side it is: -1 for both. */
    int writes, side;
} kinds[] = {
    {"store", store, 1, -1},
    {"load", load, 0, -1},
    {"read", call_read, 0, -1},
    {"read of several pages", call_vector, 0, -1},
    {"write", call_write, 1, -1},
    {"direct read", read_direct, 0, -1},
    {"fsync", sync_file, 0, -1},
    {"cut", cut, 0, 0},
    {"look behind the cut", watch_cut, 0, 1},
    {"punch", punch, 0, -1},
    {"load of a hole", look_at_holes, 0, -1},
    {"munmap", map, 1, -1},
    {"open and close", open_and_close, 0, -1},
    {"lock", take_lock, 0, -1},
    {"statfs", ask, 0, -1},
    {"forget", forget, 0, -1},
    {"read-ahead", read_ahead, 0, -1},
    {"large write", write_ahead, 0, -1},
    {"advice", advise, 0, -1},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

static void *work(void *argument)
{
    struct worker *me = argument;
    while (!atomic_load(&shared->stop)) {
        int64_t begun = now();
        atomic_store(&me->began, begun);
        me->step(me);
        atomic_store(&me->began, 0);
        int64_t took = now() - begun;
        if (took > me->slowest)
            me->slowest = took;
        me->count++;
        /* A step a millisecond: two cores have some hundred threads. */
        struct timespec pause = {.tv_nsec = 1000000};
        nanosleep(&pause, NULL);
    }
    return NULL;
}

/* Names what takes longer than it may; whether something does. */
static int is_late(void)
{
    int late = 0;
    for (int at = 0; at < worker_count; at++) {
        int64_t began = atomic_load(&workers[at].began);
        if (began && now() - began > bound) {
            printf("late on side %d: %s has taken %lld ms\n", side, workers[at].kind, (long long)(now() - began));
            late = 1;
        }
    }
    fflush(stdout);
    return late;
}

/* Ends when all threads have ended, or one does not. */
static void see_to_end(pthread_t *threads, int64_t until)
{
    for (int at = 0; at < worker_count;) {
        if (is_late()) {
            atomic_store(&shared->failed, 2);
            _exit(2);
        }
        if (atomic_load(&shared->failed))
            _exit(4);
        if (now() >= until)
            atomic_store(&shared->stop, 1);
        struct timespec end;
        clock_gettime(CLOCK_REALTIME, &end);
        end.tv_nsec += 50000000;
        if (end.tv_nsec >= 1000000000)
            end.tv_sec++, end.tv_nsec -= 1000000000;
        if (pthread_timedjoin_np(threads[at], NULL, &end) == 0)
            at++;
    }
}

static void open_all(const char *directory)
{
    snprintf(path, sizeof path, "%s/file", directory);
    snprintf(other, sizeof other, "%s/other", directory);
    file = open(path, O_RDWR);
    need(file >= 0, "opening the file");
    direct = open(path, O_RDWR | O_DIRECT);
    need(direct >= 0, "opening the file directly");
    reading = open(path, O_RDONLY);
    need(reading >= 0, "opening the file for reading");
    memory = mmap(NULL, (size_t)PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    need(memory != MAP_FAILED, "mapping the file");
}

static void say(int out)
{
    char byte = 1;
    need(write(out, &byte, 1) == 1, "telling the other side");
}

static void hear(int in)
{
    char byte;
    need(read(in, &byte, 1) == 1, "hearing of the other side");
}

static void meet(int in, int out)
{
    say(out);
    hear(in);
}

static void run_side(int copies, int64_t millis)
{
    int writer = side * (writers / 2);
    for (int kind = 0; kind < KINDS; kind++) {
        /* One process cuts, by one thread: the file has one size. */
        int most = kinds[kind].step == cut ? 1 : copies;
        for (int copy = 0; copy < most; copy++) {
            if (kinds[kind].side >= 0 && kinds[kind].side != side)
                continue;
            struct worker *me = &workers[worker_count++];
            *me = (struct worker){.kind = kinds[kind].name, .step = kinds[kind].step, .number = copy, .side = side};
            me->writer = kinds[kind].writes ? writer++ : -1;
            me->seed = (unsigned)(worker_count * 7919 + side * 104729 + getpid());
        }
    }
    pthread_t *threads = calloc((size_t)worker_count, sizeof *threads);
    need(threads != NULL, "memory");
    for (int at = 0; at < worker_count; at++)
        need(pthread_create(&threads[at], NULL, work, &workers[at]) == 0, "a thread");
    see_to_end(threads, now() + millis);
    free(threads);
}

/* What was stored last is in the file when all is published. */
static void check_end(void)
{
    for (int page = 0; page < WORDS; page++)
        for (int writer = 0; writer < writers; writer++) {
            uint64_t found = 0, last = atomic_load(&shared->words[writer][page].begun);
            need(pread(file, &found, 8, page * PAGE + writer * 8) == 8, "a read at the end of all");
            check(writer, page, last, found, "the file at the end");
            check(writer, page, mode == RELAXED ? 0 : last, atomic_load(word_in(memory, writer, page)), "a mapping at the end");
        }
}

/* How often each kind was done, and the longest that one took. */
static void tell(void)
{
    flockfile(stdout);
    const char *last = NULL;
    int64_t slowest = 0;
    long count = 0;
    for (int at = 0; at <= worker_count; at++) {
        const char *kind = at < worker_count ? workers[at].kind : NULL;
        if (last && kind != last) {
            printf("%d %ld %lld %s\n", side, count, (long long)slowest, last);
            slowest = 0, count = 0;
        }
        if (at == worker_count)
            break;
        last = kind, count += workers[at].count;
        if (workers[at].slowest > slowest)
            slowest = workers[at].slowest;
    }
    fflush(stdout);
    funlockfile(stdout);
}

int main(int count, char **words)
{
    if (count != 7) {
        fprintf(stderr, "waits MODE MILLIS BOUND_MILLIS COPIES DIRECTORY DIRECTORY\n");
        return 1;
    }
    mode = !strcmp(words[1], "strict") ? STRICT : !strcmp(words[1], "coherent") ? COHERENT : RELAXED;
    bound = atoll(words[3]);
    int copies = atoi(words[4]), pipes[2][2], writing = 0;
    for (int kind = 0; kind < KINDS; kind++)
        writing += kinds[kind].writes;
    writers = 2 * writing * copies;
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    need(shared != MAP_FAILED && pipe(pipes[0]) == 0 && pipe(pipes[1]) == 0, "what both share");
    need(writers <= WRITERS_MAX && copies * KINDS <= WORKERS_MAX, "so many copies");
    struct sigaction action = {.sa_handler = on_bus, .sa_flags = SA_NODEFER};
    need(sigaction(SIGBUS, &action, NULL) == 0, "sigaction");
    setvbuf(stdout, NULL, _IOLBF, 0);
    pid_t child = fork();
    need(child >= 0, "fork");
    side = child == 0;
    /* A side that waits for the other is notified of its end. */
    close(pipes[side][1]);
    close(pipes[!side][0]);
    open_all(words[5 + side]);
    meet(pipes[side][0], pipes[!side][1]);
    run_side(copies, atoll(words[2]));
    /* Both have stopped; all is published; both look. */
    meet(pipes[side][0], pipes[!side][1]);
    need(msync(memory, (size_t)FIRST_CUT * PAGE, MS_SYNC) == 0, "publishing all");
    meet(pipes[side][0], pipes[!side][1]);
    /* A relaxed mount shows what it has until it is asked. */
    char none[1];
    need(mode != RELAXED || fgetxattr(file, "user.ramlace.refresh", none, sizeof none) >= 0, "refresh");
    /* One after the other: else each takes the pages from the other. */
    if (side)
        hear(pipes[side][0]);
    check_end();
    tell();
    if (!side)
        say(pipes[!side][1]);
    if (side)
        return 0;
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 4;
}
