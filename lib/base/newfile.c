/* newfile.c: a file that is there whole or not at all: written without a name (where the file system has none: with one), fsync, a name beside
 * the target, rename over it, fsync of the folder.
 *
 * Only regular files are replaced; of a symbolic link, the file that it points to.  A replaced file's mode stays.  One thread at a time.
 */
#include "base.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { MAX_LINKS = 40 };

static hl_status fail_io(hl_newfile *f, const char *what)
{
    int e = errno;
    return hl_fail(f->err, HLLM_E_IO, "%s: %s failed: %s (errno %d)", f->path, what, hl_errno_text(e), e);
}

/* Writing beyond a limit on file sizes (ulimit -f) would end the process by a signal: here it is an error like any other. */
static void hold_xfsz(sigset_t *old)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGXFSZ);
    pthread_sigmask(SIG_BLOCK, &set, old);
}

static void release_xfsz(const sigset_t *old)
{
    sigset_t set;
    const struct timespec none = { 0, 0 };
    sigemptyset(&set);
    sigaddset(&set, SIGXFSZ);
    if (!sigismember(old, SIGXFSZ)) while (sigtimedwait(&set, NULL, &none) > 0) { }
    pthread_sigmask(SIG_SETMASK, old, NULL);
}

/* Where the file is to go: path itself or, when that is a symbolic link, what it points to (which need not exist yet).  *mode: the old
 * file's, -1: there is none. */
static hl_status resolve(hl_newfile *f, int *mode)
{
    hl_status rc = HLLM_OK;
    hl_mem *mem = f->env->mem;
    const char *path = f->path;
    char to[PATH_MAX], *at = NULL;
    ssize_t n;
    struct stat st;
    f->target = NULL;
    *mode = -1;
    /* By the path first: the system may refuse to follow a link (another's in a folder like /tmp), and then we do not either. */
    const bool exists = stat(path, &st) == 0;
    if (!exists && errno != ENOENT && errno != ENOTDIR) { rc = fail_io(f, "examining it"); goto done; }
    HL_NEED(at = hl_strndup(mem, path, strlen(path)));
    for (int links = 0; (n = readlink(at, to, sizeof to - 1)) >= 0; links++) {
        if (links == MAX_LINKS) { errno = ELOOP; rc = fail_io(f, "following it"); goto done; }
        const char *slash = strrchr(at, '/');
        const size_t front = to[0] == '/' || !slash ? 0 : (size_t)(slash - at) + 1, bytes = front + (size_t)n + 1;
        char *next = hl_alloc(mem, bytes);
        HL_NEED(next);
        to[n] = 0;
        snprintf(next, bytes, "%.*s%s", (int)front, at, to);
        hl_free(mem, at);
        at = next;
    }
    if (exists) {
        if (S_ISDIR(st.st_mode)) { rc = hl_fail(f->err, HLLM_E_IO, "%s: is a directory, not a file", path); goto done; }
        if (!S_ISREG(st.st_mode)) { rc = hl_fail(f->err, HLLM_E_IO, "%s: not a regular file (a pipe, socket or device): it is not replaced", path); goto done; }
        *mode = st.st_mode & 0777;
    }
    f->target = at; at = NULL;
done:
    hl_free(mem, at);
    return rc;
}

/* A file without a name, which vanishes with a process that dies; where that cannot be had, one under the name `temp` (named). */
static int open_new(hl_newfile *f, int mode)
{
    const hl_io *io = f->io;
    const char kept = f->temp[f->dir_bytes];
    int fd = -1;
    f->named = false;
    if (access("/proc/self/fd", X_OK) == 0) {          /* by it the file gets its name at the end */
        f->temp[f->dir_bytes] = 0;
        fd = io->open(io->user, f->dir_bytes ? f->temp : ".", O_WRONLY | O_TMPFILE | O_CLOEXEC, mode);
        f->temp[f->dir_bytes] = kept;
    }
    if (fd >= 0) return fd;
    fd = io->open(io->user, f->temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode);
    f->named = fd >= 0;
    return fd;
}

hl_status hl_newfile_open(const hl_env *env, hl_error *err, const char *path, hl_newfile *f)
{
    hl_status rc = HLLM_OK;
    int mode;
    *f = (hl_newfile){ .env = env, .io = env->io ? env->io : &hl_io_posix, .err = err, .path = path, .fd = -1 };
    if (!path[0]) return hl_fail(err, HLLM_E_ARG, "the path is empty");
    HL_TRY(resolve(f, &mode));
    const char *name = strrchr(f->target, '/');        /* beside it, under a short name: the target's may be as long as names can be */
    f->dir_bytes = name ? (size_t)(name - f->target) + 1 : 0;
    HL_NEED(f->temp = hl_alloc(env->mem, f->dir_bytes + 64));
    snprintf(f->temp, f->dir_bytes + 64, "%.*s.hllm-%ld-%llx.tmp", (int)f->dir_bytes, f->target, (long)getpid(), (unsigned long long)hl_now_ns());
    f->fd = open_new(f, mode >= 0 ? 0600 : 0666);      /* 0666: less the host's umask */
    if (f->fd < 0) { rc = fail_io(f, "creating a file beside it"); goto done; }
    if (mode >= 0 && fchmod(f->fd, (mode_t)mode) != 0) { }           /* a file system without modes: 0600 hurts nobody */
done:
    return rc;
}

hl_status hl_newfile_write(hl_newfile *f, const void *data, size_t n)
{
    hl_status rc = HLLM_OK;
    const char *p = data;
    sigset_t held;
    hold_xfsz(&held);
    while (n && rc == HLLM_OK) {
        const int64_t did = f->io->write(f->io->user, f->fd, p, n);
        if (did < 0 && errno == EINTR) continue;
        if (did <= 0) rc = fail_io(f, "writing");
        else { p += did; n -= (size_t)did; }
    }
    release_xfsz(&held);
    return rc;
}

hl_status hl_newfile_sync(hl_newfile *f)
{
    return f->io->fsync(f->io->user, f->fd) != 0 ? fail_io(f, "fsync") : HLLM_OK;
}

hl_status hl_newfile_commit(hl_newfile *f)
{
    hl_status rc = HLLM_OK;
    const hl_io *io = f->io;
    if (!f->named && io->link(io->user, f->fd, f->temp) != 0) { rc = fail_io(f, "naming the finished file beside it"); goto done; }
    f->named = true;
    const int bad = io->close(io->user, f->fd);
    f->fd = -1;
    if (bad) { rc = fail_io(f, "closing"); goto done; }
    if (io->rename(io->user, f->temp, f->target) != 0) { rc = fail_io(f, "renaming the finished file to it"); goto done; }
    f->named = false;
    f->temp[f->dir_bytes] = 0;                         /* the rename itself has to reach the disk */
    const int dir = io->open(io->user, f->dir_bytes ? f->temp : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    if (dir >= 0) { io->fsync(io->user, dir); io->close(io->user, dir); }
done:
    return rc;
}

void hl_newfile_close(hl_newfile *f)
{
    if (!f->io) return;
    if (f->fd >= 0) f->io->close(f->io->user, f->fd);
    if (f->named) f->io->unlink(f->io->user, f->temp);
    hl_free(f->env->mem, f->temp);
    hl_free(f->env->mem, f->target);
    *f = (hl_newfile){ .fd = -1 };
}
