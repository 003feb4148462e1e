/* Owners that lock bytes of one file at random, and give up by signals and time limits: nobody has a lock that conflicts with another's,
 * nobody loses one, and nobody waits for one that is free.
 *
 *   locks DOOR SEED MILLIS OWNERS BELIEFS PATH
 *
 * DOOR is how owners lock: posix (one owner: the process), ofd (each descriptor is one) or library (with -DLIBRARY: each open file is one,
 * and PATH lies in the pool RAMLACE_POOL). What each owner knows that it holds is in the file BELIEFS, which all programs of a run share: it
 * is noted there after a lock was granted, and taken away before it is given up. So two that hold what conflicts see each other there. An
 * owner that was told that it has not got a lock believes that it holds what it held before, and on a mount asks by another descriptor.
 *
 * In the end all owners give up everything, and each locks the whole file a few times and waits for as long as it takes.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#ifdef LIBRARY
#include <ramlace.h>
#else
struct ramlace_file;
#endif
#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid
#endif

enum {
    BYTES = 48,
    OWNERS_MAX = 64,
    WAIT_MILLIS_MAX = 30,
    CHECKS = 6,
    /* How often each locks the whole file in the end, and how long all of that may take. */
    ROUNDS_AT_THE_END = 3,
    SECONDS_AT_THE_END = 90,
};

enum kind { NONE, SHARED, EXCLUSIVE };
static const char *const KINDS[] = {"nothing", "a shared lock", "an exclusive lock"};

struct beliefs {
    _Atomic int readers[BYTES], writers[BYTES];
    /* Requests that were granted, that found another's lock, that were given up, and that failed. */
    _Atomic uint64_t granted, refused, given_up, failed;
};

struct owner {
    int number, descriptor, witness;
    struct ramlace_file *file;
    uint64_t dice;
    timer_t timer;
    enum kind held[BYTES];
    /* A byte that it held when it was told that it had not got more of it, and how often that is still to be checked. */
    int doubted, checks;
};

static const char *door;
static struct beliefs *beliefs;
static uint64_t end_millis;

static void fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "%s %d: ", door, getpid());
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    va_end(arguments);
    _exit(3);
}

static uint64_t now_millis(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* A number below a limit (SplitMix64). */
static uint64_t draw(struct owner *owner, uint64_t limit)
{
    owner->dice += 0x9e3779b97f4a7c15;
    uint64_t mixed = owner->dice;
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111eb;
    return (mixed ^ (mixed >> 31)) % limit;
}

/* Notes that an owner holds a byte so from now on. */
static void believe(struct owner *owner, int byte, enum kind kind)
{
    enum kind before = owner->held[byte];
    if (before == kind)
        return;
    owner->held[byte] = kind;
    /* What it gives up is taken away before somebody else may get it, and what it gets is noted before it looks for others. */
    if (kind == SHARED)
        beliefs->readers[byte]++;
    if (before == EXCLUSIVE)
        beliefs->writers[byte]--;
    if (before == SHARED)
        beliefs->readers[byte]--;
    if (kind == EXCLUSIVE)
        beliefs->writers[byte]++;
    if (kind == NONE || before == EXCLUSIVE)
        return;
    int writers = beliefs->writers[byte], readers = beliefs->readers[byte];
    if (kind == SHARED ? writers > 0 : writers > 1 || readers > 0)
        fail("owner %d has %s of byte %d, and there are %d readers and %d writers", owner->number, KINDS[kind], byte, readers, writers);
}

#ifndef LIBRARY
/* Lets the thread's call be interrupted again and again after so many milliseconds; 0 for never. */
static void interrupt_after(struct owner *owner, int64_t millis)
{
    struct timespec time = {millis / 1000, millis % 1000 * 1000000};
    struct itimerspec times = {millis ? (struct timespec){0, 5000000} : time, time};
    if (timer_settime(owner->timer, 0, &times, NULL) != 0)
        fail("timer_settime: %s", strerror(errno));
}
#endif

/* Asks for a lock of bytes, or gives them up; waits for so long, 0 for not at all, and -1 for as long as it takes. */
static int ask(struct owner *owner, enum kind kind, int start, int end, int64_t millis)
{
#ifdef LIBRARY
    if (kind == NONE)
        return ramlace_unlock(owner->file, start, end - start);
    return ramlace_lock(owner->file, start, end - start, kind == SHARED ? RAMLACE_LOCK_SHARED : RAMLACE_LOCK_EXCLUSIVE, millis);
#else
    static const short types[] = {F_UNLCK, F_RDLCK, F_WRLCK};
    struct flock lock = {.l_type = types[kind], .l_whence = SEEK_SET, .l_start = start, .l_len = end - start};
    int waits = millis != 0, is_posix = strcmp(door, "posix") == 0;
    int command = is_posix ? (waits ? F_SETLKW : F_SETLK) : (waits ? F_OFD_SETLKW : F_OFD_SETLK);
    if (millis > 0)
        interrupt_after(owner, millis);
    int outcome = fcntl(owner->descriptor, command, &lock), number = errno;
    if (millis > 0)
        interrupt_after(owner, 0);
    errno = number;
    return outcome;
#endif
}

/* Gives bytes up, however often that has to be tried. */
static void give_up(struct owner *owner, int start, int end)
{
    for (int byte = start; byte < end; byte++)
        believe(owner, byte, NONE);
    while (ask(owner, NONE, start, end, 0) != 0) {
        beliefs->failed++;
        usleep(1000);
    }
}

/* One of the bytes that an owner holds, if there is one: else any. */
static int any_held(struct owner *owner)
{
    int first = (int)draw(owner, BYTES), byte = first;
    while (owner->held[byte] == NONE && (byte + 1) % BYTES != first)
        byte = (byte + 1) % BYTES;
    return byte;
}

/* One of the bytes that an owner believes to hold is not free for the owner that its other descriptor is. */
static void check(struct owner *owner)
{
#ifndef LIBRARY
    int byte = owner->checks > 0 ? owner->doubted : any_held(owner);
    owner->checks -= owner->checks > 0;
    if (owner->held[byte] == NONE)
        return;
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    if (owner->held[byte] == EXCLUSIVE)
        lock.l_type = F_RDLCK;
    if (fcntl(owner->witness, F_OFD_GETLK, &lock) != 0)
        beliefs->failed++;
    else if (lock.l_type == F_UNLCK)
        fail("owner %d has %s of byte %d no more", owner->number, KINDS[owner->held[byte]], byte);
#else
    (void)owner;
#endif
}

static void lock(struct owner *owner, enum kind kind, int start, int end, int64_t millis)
{
    /* To share what it has alone it needs nobody, and may have done so whatever it is told. */
    for (int byte = start; byte < end; byte++)
        if (kind == SHARED && owner->held[byte] == EXCLUSIVE)
            believe(owner, byte, SHARED);
    if (ask(owner, kind, start, end, millis) == 0) {
        for (int byte = start; byte < end; byte++)
            believe(owner, byte, kind);
        beliefs->granted++;
        return;
    }
    if (errno != EAGAIN && owner->held[start] != NONE) {
        owner->doubted = start;
        owner->checks = CHECKS;
    }
    switch (errno) {
    case EAGAIN:
    case EACCES:
        beliefs->refused++;
        break;
    case EINTR:
    case ETIMEDOUT:
    case EDEADLK:
        beliefs->given_up++;
        break;
    case EIO:
    case EHOSTDOWN:
    case ENOTCONN:
        beliefs->failed++;
        break;
    default:
        fail("owner %d asks for %s: %s", owner->number, KINDS[kind], strerror(errno));
    }
}

static void step(struct owner *owner)
{
    /* Often what it asks for is to write what it reads. */
    int start = draw(owner, 2) ? any_held(owner) : (int)draw(owner, BYTES), end = start + 1 + (int)draw(owner, 4);
    end = end > BYTES ? BYTES : end;
    uint64_t what = draw(owner, 10);
    if (what < 3) {
        give_up(owner, draw(owner, 4) ? start : 0, draw(owner, 2) ? end : BYTES);
        return;
    }
    int64_t millis = draw(owner, 3) ? 1 + (int64_t)draw(owner, WAIT_MILLIS_MAX) : 0;
    lock(owner, what < 7 ? SHARED : EXCLUSIVE, start, end, millis);
    if (owner->checks > 0 || draw(owner, 3) == 0)
        check(owner);
    if (draw(owner, 4) == 0)
        usleep((useconds_t)draw(owner, 3000));
}

static void *run(void *of)
{
    struct owner *owner = of;
    struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGUSR1};
    event.sigev_notify_thread_id = (pid_t)syscall(SYS_gettid);
    if (timer_create(CLOCK_MONOTONIC, &event, &owner->timer) != 0)
        fail("timer_create: %s", strerror(errno));
    while (now_millis() < end_millis)
        step(owner);
    give_up(owner, 0, BYTES);
    for (int round = 0; round < ROUNDS_AT_THE_END; round++) {
        while (owner->held[0] != EXCLUSIVE)
            lock(owner, EXCLUSIVE, 0, BYTES, -1);
        give_up(owner, 0, BYTES);
    }
    return NULL;
}

static void nothing(int number)
{
    (void)number;
}

static void too_long(int number)
{
    (void)number;
    fail("an owner waits for what nobody has");
}

int main(int count, char **words)
{
    if (count != 7)
        return 64;
    door = words[1];
    int owners = atoi(words[4]), memory = open(words[5], O_RDWR);
    beliefs = mmap(NULL, sizeof *beliefs, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    if (beliefs == MAP_FAILED || owners > OWNERS_MAX)
        fail("%s: %s", words[5], strerror(errno));
    struct sigaction interrupts = {.sa_handler = nothing}, ends = {.sa_handler = too_long};
    sigaction(SIGUSR1, &interrupts, NULL);
    sigaction(SIGALRM, &ends, NULL);
    end_millis = now_millis() + (uint64_t)atoi(words[3]);
    alarm((unsigned)(atoi(words[3]) / 1000 + SECONDS_AT_THE_END));
    static struct owner all[OWNERS_MAX];
    pthread_t threads[OWNERS_MAX];
#ifdef LIBRARY
    struct ramlace_pool *pool = ramlace_connect(getenv("RAMLACE_POOL"), NULL);
    if (pool == NULL)
        fail("%s", ramlace_error());
#endif
    for (int number = 0; number < owners; number++) {
        struct owner *owner = &all[number];
        owner->number = number;
        owner->dice = strtoull(words[2], NULL, 10) * OWNERS_MAX + (uint64_t)number;
#ifdef LIBRARY
        owner->file = ramlace_open(pool, words[6], O_RDWR, 0);
        if (owner->file == NULL)
            fail("%s: %s", words[6], ramlace_error());
#else
        owner->descriptor = open(words[6], O_RDWR);
        owner->witness = open(words[6], O_RDWR);
        if (owner->descriptor < 0 || owner->witness < 0)
            fail("%s: %s", words[6], strerror(errno));
#endif
        if (pthread_create(&threads[number], NULL, run, owner) != 0)
            fail("no thread");
    }
    for (int number = 0; number < owners; number++)
        pthread_join(threads[number], NULL);
#ifdef LIBRARY
    ramlace_disconnect(pool);
#endif
    return 0;
}
