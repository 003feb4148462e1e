/* Publishing and refreshing beside the program, and the mode of one open file. */
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "capi_test.h"

#define LENGTH (4 << 20)

static ramlace_file *opened(const char *name, int flags)
{
    ramlace_file *file = ramlace_open(pool, at(name), O_RDWR | flags, 0644);
    CHECK(file != NULL);
    return file;
}

static char *viewed(ramlace_file *file)
{
    char *view = ramlace_view(file, 0, 8, NULL);
    CHECK(view != NULL);
    return view;
}

static void end(ramlace_request *request)
{
    int over = 0;
    CHECK(request != NULL);
    while (over == 0)
        CHECK(ramlace_test(request, &over) == 0);
    CHECK(over == 1 && ramlace_wait(request) == 0);
    FAILS(ramlace_wait(request) == -1, EBADF, "ramlace_request");
    FAILS(ramlace_test(request, &over) == -1, EBADF, "ramlace_request");
}

/* A view is given back before its publish is over, and mostly before it has begun. */
static void given_back(void)
{
    ramlace_file *file = opened("beside", 0);
    for (char turn = 1; turn < 20; turn++) {
        char back = 0, *view = viewed(file);
        view[LENGTH - 1] = turn;
        ramlace_request *request = ramlace_ipublish(file, LENGTH - 1, 1);
        CHECK(request != NULL && ramlace_unmap(view) == 0 && ramlace_wait(request) == 0);
        CHECK(ramlace_pread(file, &back, 1, LENGTH - 1) == 1 && back == turn);
    }
    CHECK(ramlace_close(file) == 0);
}

void test_beside(void)
{
    ramlace_file *one = opened("beside", O_CREAT), *two;
    CHECK(ramlace_allocate(one, LENGTH) == 0);
    two = opened("beside", 0);
    char *first = viewed(one), *second = viewed(two);
    for (int turn = 1; turn < 20; turn++) {
        memset(first + turn * 100000, turn, 1000);
        memset(second + turn * 100000 + 1000, 100 + turn, 1000);
        end(ramlace_ipublish(one, turn * 100000, 1000));
        end(ramlace_irefresh(two, 0, 0));
        end(ramlace_ipublish(two, 0, 0));
        CHECK(ramlace_refresh(one, 0, 0) == 0);
        CHECK(memcmp(first, second, LENGTH) == 0 && first[turn * 100000] == turn && first[turn * 100000 + 1999] == 100 + turn);
    }
    /* Several at once, and the file is closed meanwhile. */
    ramlace_request *requests[8];
    for (int i = 0; i < 8; i++) {
        memset(first + i * 50000, 50 + i, 8);
        requests[i] = ramlace_ipublish(one, i * 50000, 8);
        CHECK(requests[i] != NULL);
    }
    CHECK(ramlace_close(one) == 0);
    for (int i = 0; i < 8; i++)
        CHECK(ramlace_wait(requests[i]) == 0);
    CHECK(ramlace_refresh(two, 0, 0) == 0 && second[7 * 50000] == 57);
    /* What fails reports why to the call that waits; bytes that are none are refused at once. */
    FAILS(ramlace_ipublish(two, -1, 0) == NULL, EINVAL, "offset");
    FAILS(ramlace_irefresh(two, 0, -1) == NULL, EINVAL, "length");
    FAILS(ramlace_irefresh(one, 0, 0) == NULL, EBADF, "ramlace_file");
    FAILS(ramlace_wait(NULL) == -1, EBADF, "null");
    /* A forked child has no request of its parent's. */
    ramlace_request *request = ramlace_irefresh(two, 0, 0);
    CHECK(request != NULL);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        FAILS(ramlace_wait(request) == -1, EBADF, "forked");
        _exit(0);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(ramlace_wait(request) == 0);
    CHECK(ramlace_unmap(first) == 0 && ramlace_unmap(second) == 0 && ramlace_close(two) == 0);
    given_back();
}

void test_sharing(void)
{
    char back[8] = "";
    ramlace_file *file = opened("shared", O_CREAT);
    CHECK(ramlace_allocate(file, LENGTH) == 0);
    FAILS(ramlace_open(pool, at("shared"), O_RDWR | RAMLACE_O_RELAXED | RAMLACE_O_STRICT, 0) == NULL, EINVAL, "strict");
    /* In strict mode nothing is memory that others see later. */
    ramlace_file *strict = opened("shared", RAMLACE_O_STRICT);
    FAILS(ramlace_view(strict, 0, 1, NULL) == NULL, EOPNOTSUPP, "strict mode");
    FAILS(ramlace_map(strict, PROT_READ, NULL) == NULL, EOPNOTSUPP, "strict mode");
    CHECK(ramlace_pwrite(strict, "strict", 6, 0) == 6 && ramlace_pread(file, back, 6, 0) == 6);
    CHECK(memcmp(back, "strict", 6) == 0 && ramlace_close(strict) == 0);
    /* In relaxed mode a lock refreshes what is locked, and its end publishes that. */
    ramlace_file *one = opened("shared", RAMLACE_O_RELAXED), *two = opened("shared", RAMLACE_O_RELAXED);
    char *first = viewed(one), *second = viewed(two);
    for (unsigned char turn = 1; turn < 40; turn++) {
        ramlace_file *who = turn % 3 == 0 ? two : one;
        char *view = turn % 3 == 0 ? second : first;
        CHECK(ramlace_lock(who, 1 << 20, 8, RAMLACE_LOCK_EXCLUSIVE, turn % 2 ? -1 : 0) == 0);
        CHECK(view[1 << 20] == turn - 1);
        view[1 << 20] = turn;
        CHECK(ramlace_unlock(who, 1 << 20, 8) == 0);
    }
    CHECK(ramlace_pread(file, back, 1, 1 << 20) == 1 && back[0] == 39);
    CHECK(ramlace_unmap(first) == 0 && ramlace_unmap(second) == 0);
    CHECK(ramlace_close(one) == 0 && ramlace_close(two) == 0 && ramlace_close(file) == 0);
}
