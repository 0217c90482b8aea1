/* Preloaded into a process, this counts the file operations below one directory, and can kill the process before, in the
 * middle of or after the n-th, let it fail, or record them all. It does nothing until `faults_arm` is called. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { OPEN = 1, WRITE, SYNC, RENAME, UNLINK, MKDIR, TRUNCATE, MARK, READ };
enum { NOTHING, BEFORE, MIDDLE, AFTER, FAIL };

static char place[PATH_MAX];
static size_t place_length;
static long seen, at = -1;
static int action, error_code, sticky, with_reads, trace = -1;

#define REAL(name) \
    static __typeof__(&name) real; \
    if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

static ssize_t real_write(int fd, const void *data, size_t count) {
    REAL(write);
    return real(fd, data, count);
}

static void record(int op, int ok, const char *one, const char *two, int64_t offset, const void *data, int64_t count) {
    if (trace < 0) return;
    int32_t head[4] = {op, ok, (int32_t)strlen(one), (int32_t)strlen(two)};
    int64_t sizes[2] = {offset, count};
    struct iovec parts[5] = {{head, sizeof head}, {sizes, sizeof sizes}, {(void *)one, (size_t)head[2]},
                             {(void *)two, (size_t)head[3]}, {(void *)data, (size_t)count}};
    for (int i = 0; i < 5; i++) {
        const char *rest = parts[i].iov_base;
        size_t left = parts[i].iov_len;
        while (left) {
            ssize_t done = real_write(trace, rest, left);
            if (done < 0) _exit(98);
            rest += done;
            left -= (size_t)done;
        }
    }
}

void faults_arm(const char *directory, long number, int what, int error, int for_good, int reads, int trace_fd) {
    strncpy(place, directory, sizeof place - 1);
    place_length = strlen(place);
    seen = 0, at = number, action = what, error_code = error, sticky = for_good, with_reads = reads, trace = trace_fd;
}

void faults_disarm(void) { place_length = 0, trace = -1; }

long faults_seen(void) { return seen; }

/* A statement of the program itself, at its place among the operations. */
void faults_mark(int64_t number) {
    if (place_length) record(MARK, 1, "", "", number, "", 0);
}

static int inside(const char *path) {
    return place_length && !strncmp(path, place, place_length) && (path[place_length] == '/' || !path[place_length]);
}

static void die(void) {
    kill(getpid(), SIGKILL);
    for (;;) pause();
}

/* What is to happen to this operation; NOTHING for almost all. */
static int decide(const char *path, int frees) {
    if (!inside(path)) return NOTHING;
    long number = seen++;
    if (at < 0 || !(number == at || (sticky && number > at && !frees))) return NOTHING;
    if (action == BEFORE) die();
    if (action == FAIL) errno = error_code;
    return action;
}

static void absolute(int directory, const char *path, char *out) {
    if (path[0] == '/') {
        snprintf(out, PATH_MAX, "%s", path);
        return;
    }
    char base[PATH_MAX] = "";
    if (directory == AT_FDCWD) {
        if (!getcwd(base, sizeof base)) base[0] = 0;
    } else {
        char link[64];
        snprintf(link, sizeof link, "/proc/self/fd/%d", directory);
        ssize_t length = readlink(link, base, sizeof base - 1);
        base[length > 0 ? length : 0] = 0;
    }
    if (snprintf(out, PATH_MAX, "%s/%s", base, path) >= PATH_MAX) out[0] = 0;
}

static void name_of(int fd, char *out) {
    char link[64];
    int before = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = place_length ? readlink(link, out, PATH_MAX - 1) : 0;
    out[length > 0 ? length : 0] = 0;
    errno = before;
}

/* The call, or its failure, or the end of the process; then a line of the record. */
#define AROUND(type, op, path, frees, call, one, two, offset, data, count) \
    int what = decide(path, frees); \
    if (what == FAIL) return -1; \
    if (what == MIDDLE) die(); \
    type result = call; \
    if (what == AFTER) die(); \
    if (inside(path)) record(op, result >= 0, one, two, offset, data, count); \
    return result

static int opened(int directory, const char *path, int flags, mode_t mode) {
    REAL(openat);
    char name[PATH_MAX];
    absolute(directory, path, name);
    int writes = (flags & (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC)) != 0;
    if (!inside(name) || (!writes && !with_reads)) return real(directory, path, flags, mode);
    AROUND(int, OPEN, name, 0, real(directory, path, flags, mode), name, "", flags, "", 0);
}

#define MODE \
    mode_t mode = 0; \
    if (flags & (O_CREAT | O_TMPFILE)) { \
        va_list rest; \
        va_start(rest, flags); \
        mode = va_arg(rest, mode_t); \
        va_end(rest); \
    }
int open(const char *path, int flags, ...) { MODE return opened(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE return opened(AT_FDCWD, path, flags, mode); }
int openat(int directory, const char *path, int flags, ...) { MODE return opened(directory, path, flags, mode); }
int openat64(int directory, const char *path, int flags, ...) { MODE return opened(directory, path, flags, mode); }
int creat(const char *path, mode_t mode) { return opened(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }

static int64_t end_of(int fd) {
    struct stat about;
    if (fcntl(fd, F_GETFL) & O_APPEND) return fstat(fd, &about) ? -1 : about.st_size;
    return lseek(fd, 0, SEEK_CUR);
}

ssize_t write(int fd, const void *data, size_t count) {
    char name[PATH_MAX];
    name_of(fd, name);
    if (!inside(name)) return real_write(fd, data, count);
    int64_t offset = end_of(fd);
    int what = decide(name, 0);
    if (what == FAIL) return -1;
    if (what == MIDDLE) {
        real_write(fd, data, count / 2);
        die();
    }
    ssize_t done = real_write(fd, data, count);
    if (what == AFTER) die();
    record(WRITE, done >= 0, name, "", offset, data, done > 0 ? done : 0);
    return done;
}

ssize_t pwrite64(int fd, const void *data, size_t count, off64_t offset) {
    REAL(pwrite64);
    char name[PATH_MAX];
    name_of(fd, name);
    if (!inside(name)) return real(fd, data, count, offset);
    AROUND(ssize_t, WRITE, name, 0, real(fd, data, count, offset), name, "", offset, data, (int64_t)count);
}
ssize_t pwrite(int fd, const void *data, size_t count, off_t offset) { return pwrite64(fd, data, count, offset); }

ssize_t writev(int fd, const struct iovec *parts, int count) {
    ssize_t total = 0;
    for (int i = 0; i < count; i++) {
        ssize_t done = write(fd, parts[i].iov_base, parts[i].iov_len);
        if (done < 0) return total ? total : -1;
        total += done;
        if ((size_t)done < parts[i].iov_len) break;
    }
    return total;
}

ssize_t read(int fd, void *data, size_t count) {
    REAL(read);
    char name[PATH_MAX];
    if (!with_reads || !place_length) return real(fd, data, count);
    name_of(fd, name);
    if (!inside(name)) return real(fd, data, count);
    AROUND(ssize_t, READ, name, 0, real(fd, data, count), name, "", 0, "", 0);
}

static int synced(int fd, int (*call)(int)) {
    char name[PATH_MAX];
    name_of(fd, name);
    AROUND(int, SYNC, name, 0, call(fd), name, "", 0, "", 0);
}
int fsync(int fd) { REAL(fsync); return synced(fd, real); }
int fdatasync(int fd) { REAL(fdatasync); return synced(fd, real); }

static int renamed(int from, const char *old, int to, const char *new, unsigned flags) {
    REAL(renameat2);
    char one[PATH_MAX], two[PATH_MAX];
    absolute(from, old, one);
    absolute(to, new, two);
    AROUND(int, RENAME, two, 0, real(from, old, to, new, flags), one, two, 0, "", 0);
}
int rename(const char *old, const char *new) { return renamed(AT_FDCWD, old, AT_FDCWD, new, 0); }
int renameat(int from, const char *old, int to, const char *new) { return renamed(from, old, to, new, 0); }
int renameat2(int from, const char *old, int to, const char *new, unsigned flags) {
    return renamed(from, old, to, new, flags);
}

int unlinkat(int directory, const char *path, int flags) {
    REAL(unlinkat);
    char name[PATH_MAX];
    absolute(directory, path, name);
    AROUND(int, UNLINK, name, 1, real(directory, path, flags), name, "", 0, "", 0);
}
int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }

int mkdirat(int directory, const char *path, mode_t mode) {
    REAL(mkdirat);
    char name[PATH_MAX];
    absolute(directory, path, name);
    AROUND(int, MKDIR, name, 0, real(directory, path, mode), name, "", 0, "", 0);
}
int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }

int ftruncate64(int fd, off64_t length) {
    REAL(ftruncate64);
    char name[PATH_MAX];
    name_of(fd, name);
    AROUND(int, TRUNCATE, name, 0, real(fd, length), name, "", length, "", 0);
}
int ftruncate(int fd, off_t length) { return ftruncate64(fd, length); }
