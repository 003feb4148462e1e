/* One handle and several threads or processes; mappings; what makes no sense. */
#define _POSIX_C_SOURCE 200809L
#include "capi_test.h"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RECORD = 5000, RECORDS = 400, THREADS = 4 };

static ramlace_file *file;

static void *write_records(void *argument)
{
    unsigned char record[RECORD];
    for (int i = 0; i < RECORDS; i++) {
        memset(record, (int)(intptr_t)argument, sizeof record);
        memcpy(record, &i, sizeof i);
        CHECK(ramlace_write(file, record, sizeof record) == RECORD);
    }
    return NULL;
}

static unsigned char *taken;

static void *read_records(void *argument)
{
    unsigned char record[RECORD];
    (void)argument;
    ssize_t got;
    while ((got = ramlace_read(file, record, sizeof record)) != 0) {
        int number;
        CHECK(got == RECORD);
        memcpy(&number, record, sizeof number);
        for (int i = sizeof number; i < RECORD; i++)
            CHECK(record[i] == record[RECORD - 1]);
        CHECK(number >= 0 && number < RECORDS && record[RECORD - 1] < THREADS);
        unsigned char *mark = &taken[record[RECORD - 1] * RECORDS + number];
        CHECK(__atomic_fetch_add(mark, 1, __ATOMIC_SEQ_CST) == 0);
    }
    return NULL;
}

static void *fail_alone(void *argument)
{
    struct ramlace_stat stat;
    CHECK(strcmp(ramlace_error(), "") == 0);
    FAILS(ramlace_stat(pool, at("nothing"), &stat) == -1, ENOENT, "nothing");
    return argument;
}

static void run(void *(*work)(void *))
{
    pthread_t threads[THREADS];
    for (intptr_t i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, work, (void *)i) == 0);
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
}

/* Every record once: written by threads that share the position, read by threads that do. */
void test_threads(void)
{
    struct ramlace_stat stat;
    pthread_t other;
    for (int append = 0; append < 2; append++) {
        int flags = O_RDWR | O_CREAT | O_TRUNC | (append ? O_APPEND : 0);
        CHECK((file = ramlace_open(pool, at("records"), flags, 0644)) != NULL);
        CHECK((taken = calloc(THREADS, RECORDS)) != NULL);
        run(write_records);
        CHECK(ramlace_fstat(file, &stat) == 0 && stat.size == (uint64_t)RECORD * RECORDS * THREADS);
        CHECK(ramlace_lseek(file, 0, SEEK_SET) == 0);
        run(read_records);
        for (int i = 0; i < THREADS * RECORDS; i++)
            CHECK(taken[i] == 1);
        free(taken);
        CHECK(ramlace_close(file) == 0);
    }
    FAILS(ramlace_stat(pool, at("mine"), &stat) == -1, ENOENT, "mine");
    CHECK(pthread_create(&other, NULL, fail_alone, NULL) == 0 && pthread_join(other, NULL) == 0);
    CHECK(strstr(ramlace_error(), "mine") != NULL);
}

static int stop;

static void *keep_reading(void *argument)
{
    unsigned char bytes[RECORD];
    while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
        /* Others move the position as well: there may be nothing left to read. */
        CHECK(ramlace_lseek(file, 0, SEEK_SET) == 0);
        CHECK(ramlace_read(file, bytes, sizeof bytes) >= 0);
        CHECK(ramlace_pread(file, bytes, sizeof bytes, RECORD) == (ssize_t)sizeof bytes);
    }
    return argument;
}

static void live_as_child(void)
{
    unsigned char bytes[RECORD];
    ramlace_entry entry;
    CHECK(ramlace_lseek(file, 10, SEEK_SET) == 10);
    CHECK(ramlace_read(file, bytes, 100) == 100 && bytes[0] == byte_at(3, 10));
    CHECK(ramlace_pwrite(file, "child", 5, 2 * RECORD) == 5);
    ramlace_directory *directory = ramlace_opendir(pool, at("."));
    CHECK(directory != NULL && ramlace_readdir(directory, &entry) == 1);
    CHECK(ramlace_closedir(directory) == 0);
    CHECK(ramlace_close(file) == 0);
    FAILS(ramlace_read(file, bytes, 1) == -1, EBADF, "ramlace_file");
    CHECK(ramlace_disconnect(pool) == 0);
}

static void await(pid_t child)
{
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* Children use, and close, what their parent opened, also while its threads are in calls. */
void test_forks(void)
{
    unsigned char bytes[3 * RECORD];
    pthread_t threads[THREADS];
    ramlace_entry entry;
    fill(bytes, 3, sizeof bytes);
    CHECK((file = ramlace_open(pool, at("forked"), O_RDWR | O_CREAT, 0644)) != NULL);
    CHECK(ramlace_write(file, bytes, sizeof bytes) == (ssize_t)sizeof bytes);
    CHECK(ramlace_lseek(file, 77, SEEK_SET) == 77);
    ramlace_directory *directory = ramlace_opendir(pool, at("."));
    CHECK(directory != NULL);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        /* The position is the parent's at the fork, and the child's own from then on. */
        CHECK(ramlace_lseek(file, 1, SEEK_CUR) == 78);
        FAILS(ramlace_readdir(directory, &entry) == -1, EBADF, "fork");
        CHECK(ramlace_closedir(directory) == 0);
        live_as_child();
        _exit(0);
    }
    await(child);
    CHECK(ramlace_lseek(file, 0, SEEK_CUR) == 77);
    CHECK(ramlace_pread(file, bytes, 5, 2 * RECORD) == 5 && memcmp(bytes, "child", 5) == 0);
    CHECK(ramlace_readdir(directory, &entry) == 1 && ramlace_closedir(directory) == 0);
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, keep_reading, NULL) == 0);
    for (int i = 0; i < 20; i++) {
        child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            live_as_child();
            _exit(0);
        }
        await(child);
    }
    __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(ramlace_close(file) == 0);
}

void test_maps(void)
{
    size_t length = 0;
    char back[8] = "";
    CHECK((file = ramlace_open(pool, at("mapped"), O_RDWR | O_CREAT, 0644)) != NULL);
    CHECK(ramlace_ftruncate(file, 100) == 0);
    FAILS(ramlace_map(file, PROT_READ, &length) == NULL, EOPNOTSUPP, "memory");
    CHECK(ramlace_allocate(file, 5 << 20) == 0);
    CHECK(ramlace_pwrite(file, "written", 7, 3 << 20) == 7);
    char *map = ramlace_map(file, PROT_READ | PROT_WRITE, &length);
    CHECK(map != NULL && length == 5 << 20 && memcmp(map + (3 << 20), "written", 7) == 0);
    const char *other = ramlace_map(file, PROT_READ, NULL);
    CHECK(other != NULL && other != map);
    memcpy(map + (4 << 20), "stored", 6);
    CHECK(memcmp(other + (4 << 20), "stored", 6) == 0);
    CHECK(ramlace_pread(file, back, 6, 4 << 20) == 6 && memcmp(back, "stored", 6) == 0);
    FAILS(ramlace_map(file, PROT_WRITE, NULL) == NULL, EINVAL, "PROT_READ");
    CHECK(ramlace_close(file) == 0 && ramlace_unlink(pool, at("mapped")) == 0);
    CHECK(memcmp(map + (4 << 20), "stored", 6) == 0);
    CHECK(ramlace_unmap(map) == 0 && ramlace_unmap((void *)other) == 0);
    FAILS(ramlace_unmap(map) == -1, EINVAL, "no mapping");
    FAILS(ramlace_unmap(NULL) == -1, EFAULT, "null");
}

/* The file's own memory, or, with local off, a copy of each: by the library's two verbs in step. */
void test_views(void)
{
    ramlace_file *one, *two, *reader;
    int shared = -1, own = getenv("RAMLACE_LOCAL") == NULL;
    CHECK((one = ramlace_open(pool, at("viewed"), O_RDWR | O_CREAT, 0644)) != NULL);
    CHECK((two = ramlace_open(pool, at("viewed"), O_RDWR, 0)) != NULL);
    CHECK((reader = ramlace_open(pool, at("viewed"), O_RDONLY, 0)) != NULL);
    FAILS(ramlace_view(one, 0, 1, NULL) == NULL, EINVAL, "0 bytes");
    CHECK(ramlace_allocate(one, 5 << 20) == 0);
    FAILS(ramlace_view(one, (5 << 20) + 1, 1, NULL) == NULL, EINVAL, "bytes");
    char *first = ramlace_view(one, 0, 8, &shared);
    CHECK(first != NULL && shared == own);
    char *second = ramlace_view(two, 4 << 20, 8, NULL);
    const char *third = ramlace_view(reader, 0, 0, &shared);
    CHECK(second != NULL && third != NULL && shared == own);
    memcpy(first + 16, "stored", 6);
    memcpy(second + 24, "kept", 4);
    memcpy(first + (3 << 20), "later", 5);
    CHECK(ramlace_publish(one, 20, 1) == 0);
    CHECK(ramlace_refresh(two, 0, 100) == 0 && ramlace_refresh(reader, 0, 0) == 0);
    CHECK(memcmp(second + 16, "stored\0\0kept", 12) == 0 && memcmp(third + 16, "stored", 6) == 0);
    CHECK(own || memcmp(third + (3 << 20), "\0\0\0\0\0", 5) == 0);
    CHECK(ramlace_publish(one, 1 << 20, 0) == 0 && ramlace_refresh(two, 1 << 20, 0) == 0);
    CHECK(memcmp(second + (3 << 20), "later", 5) == 0);
    CHECK(ramlace_publish(two, 0, 0) == 0 && ramlace_refresh(one, 0, 0) == 0);
    CHECK(memcmp(first + 24, "kept", 4) == 0);
    CHECK(ramlace_publish(reader, 0, 0) == 0);
    FAILS(ramlace_publish(one, -1, 0) == -1, EINVAL, "offset");
    FAILS(ramlace_refresh(one, 0, -1) == -1, EINVAL, "length");
    CHECK(ramlace_unmap(second) == 0 && ramlace_refresh(two, 0, 0) == 0);
    CHECK(ramlace_close(one) == 0 && ramlace_close(two) == 0 && ramlace_close(reader) == 0);
    FAILS(ramlace_refresh(one, 0, 0) == -1, EBADF, "ramlace_file");
    CHECK(memcmp(first + 24, "kept", 4) == 0);
    CHECK(ramlace_unmap(first) == 0 && ramlace_unmap((void *)third) == 0);
    FAILS(ramlace_unmap(first) == -1, EINVAL, "no mapping");
}

static void test_wrong_options(void)
{
    ramlace_options options = RAMLACE_OPTIONS_INIT;
    FAILS(ramlace_connect("no such pool/", NULL) == NULL, EINVAL, "is no name of a pool");
    FAILS(ramlace_connect("", NULL) == NULL, EINVAL, "use 1 to 32");
    FAILS(ramlace_connect("ramlace://host:0", NULL) == NULL, EINVAL, "host:port");
    FAILS(ramlace_connect("nosuchpool", NULL) == NULL, ENOENT, "nosuchpool");
    options.deadline_millis = 600001;
    FAILS(ramlace_connect(NULL, &options) == NULL, EINVAL, "deadline");
    options.deadline_millis = 0;
    options.local = 2;
    FAILS(ramlace_connect(NULL, &options) == NULL, EINVAL, "local");
    options.local = 0;
    options.size = 3;
    FAILS(ramlace_connect(NULL, &options) == NULL, EINVAL, "_INIT");
    options.size = sizeof options;
    options.label = "\xff";
    FAILS(ramlace_connect(NULL, &options) == NULL, EINVAL, "UTF-8");
    options.label = NULL;
    options.secret_file = "/nonexistent/secret";
    FAILS(ramlace_connect("ramlace://127.0.0.1:9", &options) == NULL, ENOENT, "/nonexistent/secret");
}

/* Handles that are closed, of another kind or invented; null pointers; impossible numbers. */
void test_wrong(void)
{
    char byte;
    struct ramlace_stat stat;
    CHECK((file = ramlace_open(pool, at("wrong"), O_RDWR | O_CREAT, 0644)) != NULL);
    FAILS(ramlace_pread(file, NULL, 1, 0) == -1, EFAULT, "null");
    FAILS(ramlace_pwrite(file, NULL, 1, 0) == -1, EFAULT, "null");
    CHECK(ramlace_read(file, NULL, 0) == 0 && ramlace_write(file, NULL, 0) == 0);
    FAILS(ramlace_pread(file, &byte, 1, -1) == -1, EINVAL, "negative");
    FAILS(ramlace_pwrite(file, &byte, 1, INT64_MIN) == -1, EINVAL, "negative");
    FAILS(ramlace_read(file, &byte, SIZE_MAX) == -1, EINVAL, "SSIZE_MAX");
    FAILS(ramlace_write(file, &byte, SIZE_MAX / 2 + 1) == -1, EINVAL, "SSIZE_MAX");
    FAILS(ramlace_append(file, &byte, SIZE_MAX) == -1, EINVAL, "SSIZE_MAX");
    FAILS(ramlace_fstat(file, NULL) == -1, EFAULT, "null");
    FAILS(ramlace_stat(pool, NULL, &stat) == -1, EFAULT, "null");
    FAILS(ramlace_stat(pool, "/", NULL) == -1, EFAULT, "null");
    FAILS(ramlace_statfs(pool, NULL) == -1, EFAULT, "null");
    FAILS(ramlace_readlink(pool, "/", NULL, 1) == -1, EFAULT, "null");
    FAILS(ramlace_symlink(pool, NULL, at("x")) == -1, EFAULT, "null");
    FAILS(ramlace_open(pool, NULL, O_RDONLY, 0) == NULL, EFAULT, "null");
    FAILS(ramlace_open(pool, at("x"), O_RDONLY | O_DIRECTORY, 0) == NULL, EINVAL, "flags");
    FAILS(ramlace_open(pool, at("x"), O_RDONLY | O_TRUNC, 0644) == NULL, EINVAL, "writing");
    FAILS(ramlace_open(pool, at("x"), O_WRONLY | O_CREAT, 0100644) == NULL, EINVAL, "mode");
    FAILS(ramlace_stat((ramlace_pool *)file, "/", &stat) == -1, EBADF, "no open ramlace_pool");
    FAILS(ramlace_fsync((ramlace_file *)pool) == -1, EBADF, "no open ramlace_file");
    FAILS(ramlace_disconnect((ramlace_pool *)file) == -1, EBADF, "ramlace_pool");
    FAILS(ramlace_fsync((ramlace_file *)&byte) == -1, EBADF, "no open ramlace_file");
    FAILS(ramlace_fsync(NULL) == -1, EBADF, "null");
    CHECK(ramlace_error_code() == RAMLACE_ERROR_BAD_HANDLE);
    CHECK(ramlace_close(file) == 0);
    FAILS(ramlace_close(file) == -1, EBADF, "closed already");
    FAILS(ramlace_read(file, &byte, 1) == -1, EBADF, "closed already");
    FAILS(ramlace_map(file, PROT_READ, NULL) == NULL, EBADF, "closed already");
    /* Success keeps the text; the next failure replaces it. */
    CHECK(ramlace_stat(pool, at("wrong"), &stat) == 0);
    CHECK(strstr(ramlace_error(), "closed already") != NULL);
    test_wrong_options();
}
