/* System calls that fail, for `python -m benchmarks.trials faults`: loaded before the C library.

   FAULT is read at each call: "CALL ERRNO FIRST COUNT FOLDER". Of the calls to CALL (write, fsync,
   close, rename or flock) on files whose path has FOLDER in it, those from FIRST on, COUNT of them,
   fail with ERRNO. The ERRNO 0 of a write lets it write a third. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static int seen;

/* Return the errno with which a call fails, 0 for a short write, and -1 if it does not. */
static int fails(const char *call, const char *path) {
    char wanted[16], folder[256];
    int number, first, count;
    const char *fault = getenv("FAULT");
    if (!fault || sscanf(fault, "%15s %d %d %d %255s", wanted, &number, &first, &count, folder) != 5)
        return -1;
    if (strcmp(call, wanted) || !strstr(path, folder)) return -1;
    int place = __sync_fetch_and_add(&seen, 1);
    return place >= first && place < first + count ? number : -1;
}

static int fails_on(const char *call, int file) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return -1;
    path[length] = 0;
    return fails(call, path);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define FAIL_IF(found) do { int n_ = (found); if (n_ > 0) { errno = n_; return -1; } } while (0)

ssize_t write(int file, const void *content, size_t size) {
    int number = fails_on("write", file);
    FAIL_IF(number);
    return REAL(write)(file, content, number == 0 && size > 2 ? size / 3 : size);
}

int fsync(int file) {
    FAIL_IF(fails_on("fsync", file));
    return REAL(fsync)(file);
}

int close(int file) {
    int mode = fcntl(file, F_GETFL);
    int number = mode >= 0 && (mode & O_ACCMODE) != O_RDONLY ? fails_on("close", file) : -1;
    int result = REAL(close)(file);
    FAIL_IF(number);
    return result;
}

int rename(const char *before, const char *after) {
    char path[PATH_MAX];
    FAIL_IF(fails("rename", realpath(before, path) ? path : before));
    return REAL(rename)(before, after);
}

int flock(int file, int how) {
    FAIL_IF(fails_on("flock", file));
    return REAL(flock)(file, how);
}
