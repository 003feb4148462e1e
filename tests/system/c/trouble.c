/* Other pools, full pools, dead pools. */
#define _POSIX_C_SOURCE 200809L
#include "capi_test.h"

#include <time.h>

/* argv: what means this pool, "--", what means another one. */
void test_locators(int argc, char **argv)
{
    struct ramlace_stat own, stat;
    char path[1024];
    int ours = 1;
    CHECK(argc >= 3 && ramlace_mkdir(pool, at("here"), 0755) == 0);
    CHECK(ramlace_stat(pool, at("here"), &own) == 0);
    for (int i = 0; i < argc; i++) {
        if (strcmp(argv[i], "--") == 0) {
            ours = 0;
            continue;
        }
        snprintf(path, sizeof path, "%s%s", argv[i], at("here"));
        if (ours) {
            CHECK(ramlace_stat(pool, path, &stat) == 0 && stat.inode == own.inode);
            /* The locator of a file connects to its pool. */
            ramlace_pool *again = ramlace_connect(path, NULL);
            CHECK(again != NULL && ramlace_stat(again, path, &stat) == 0 && stat.inode == own.inode);
            CHECK(ramlace_disconnect(again) == 0);
        } else {
            FAILS(ramlace_stat(pool, path, &stat) == -1, EINVAL, "another pool");
            FAILS(ramlace_open(pool, path, O_RDWR | O_CREAT, 0644) == NULL, EINVAL, "another pool");
        }
    }
    FAILS(ramlace_stat(pool, "ramlace:here", &stat) == -1, EINVAL, "slash");
    ramlace_options options = RAMLACE_OPTIONS_INIT;
    options.local = -1;
    ramlace_pool *far = ramlace_connect(argv[0], &options);
    CHECK(far != NULL && ramlace_stat(far, at("here"), &stat) == 0 && stat.inode == own.inode);
    ramlace_file *file = ramlace_open(far, at("outlives"), O_RDWR | O_CREAT, 0644);
    CHECK(file != NULL && ramlace_disconnect(far) == 0);
    CHECK(ramlace_write(file, "its pool", 8) == 8 && ramlace_close(file) == 0);
}

void test_full(void)
{
    enum { PIECE = 1 << 20 };
    static unsigned char piece[PIECE], back[PIECE];
    int64_t done = 0;
    ssize_t now;
    ramlace_hints hints = RAMLACE_HINTS_INIT;
    hints.stripe_unit = UNIT;
    ramlace_file *file = ramlace_open_with(pool, at("full"), O_RDWR | O_CREAT, 0644, &hints);
    CHECK(file != NULL);
    fill(piece, 5, PIECE);
    errno = 0;
    while ((now = ramlace_write(file, piece + done % PIECE, (size_t)(PIECE - done % PIECE))) > 0)
        done += now;
    CHECK(now == -1 && errno == ENOSPC && ramlace_error_code() == RAMLACE_ERROR_NO_SPACE);
    CHECK(strstr(ramlace_error(), "full") != NULL && done > PIECE);
    /* The position stands behind what was written, and all of that is there. */
    CHECK(ramlace_lseek(file, 0, SEEK_CUR) == done);
    for (int64_t at = 0; at < done; at += PIECE) {
        size_t length = (size_t)(done - at < PIECE ? done - at : PIECE);
        CHECK(ramlace_pread(file, back, length, at) == (ssize_t)length);
        CHECK(memcmp(back, piece, length) == 0);
    }
    FAILS(ramlace_append(file, piece, PIECE) == -1, ENOSPC, "full");
    CHECK(ramlace_ftruncate(file, 0) == 0 && ramlace_pwrite(file, piece, PIECE, 0) == PIECE);
    CHECK(ramlace_close(file) == 0 && ramlace_unlink(pool, at("full")) == 0);
}

/* The test kills every server when it reads "ready", and answers with a line. */
void test_gone(void)
{
    char line[16];
    struct ramlace_stat stat;
    struct timespec before, after;
    ramlace_file *file = ramlace_open(pool, at("gone"), O_RDWR | O_CREAT, 0644);
    CHECK(file != NULL && ramlace_write(file, "bytes", 5) == 5);
    puts("ready");
    CHECK(fflush(stdout) == 0 && fgets(line, sizeof line, stdin) != NULL);
    for (int i = 0; i < 3; i++) {
        CHECK(clock_gettime(CLOCK_MONOTONIC, &before) == 0);
        errno = 0;
        if (i == 0)
            CHECK(ramlace_pread(file, line, 5, 0) == -1);
        else if (i == 1)
            CHECK(ramlace_stat(pool, at("gone"), &stat) == -1);
        else
            CHECK(ramlace_connect(NULL, NULL) == NULL);
        CHECK(errno == EHOSTDOWN || errno == ETIMEDOUT);
        CHECK(clock_gettime(CLOCK_MONOTONIC, &after) == 0);
        /* 4 seconds is the deadline; the rest is for a busy machine. */
        CHECK(after.tv_sec - before.tv_sec <= 8);
        puts(ramlace_error());
    }
    ramlace_close(file);
    FAILS(ramlace_close(file) == -1, EBADF, "closed already");
}
