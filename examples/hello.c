/*
 * Writes a file into the pool and reads it back.
 *
 *     cc hello.c $(pkg-config --cflags --libs ramlace) -o hello && ./hello
 */
#include <fcntl.h>
#include <ramlace.h>
#include <stdio.h>
#include <string.h>

static int failed(const char *doing)
{
    fprintf(stderr, "hello: %s: %s\n", doing, ramlace_error());
    return 1;
}

int main(void)
{
    const char text[] = "hello from a pool of memory";
    char back[sizeof text] = "";
    ramlace_pool *pool = ramlace_connect(NULL, NULL);
    if (pool == NULL)
        return failed("connecting");
    ramlace_file *file = ramlace_open(pool, "/hello", O_RDWR | O_CREAT | O_TRUNC, 0644);
    if (file == NULL)
        return failed("opening");
    if (ramlace_pwrite(file, text, sizeof text, 0) != (ssize_t)sizeof text)
        return failed("writing");
    if (ramlace_pread(file, back, sizeof back, 0) != (ssize_t)sizeof back)
        return failed("reading");
    puts(back);
    if (ramlace_close(file) != 0 || ramlace_unlink(pool, "/hello") != 0)
        return failed("removing");
    return ramlace_disconnect(pool) == 0 ? 0 : failed("disconnecting");
}
