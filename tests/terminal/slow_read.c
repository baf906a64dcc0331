/* slow_read.c: loaded in front of a program (LD_PRELOAD), it makes each read of a file take 60 ms, as a slow disk does: what is shown while a
 * model loads can then be seen with a small one. */
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

__attribute__((visibility("default"))) ssize_t pread(int fd, void *buf, size_t n, off_t at)
{
    nanosleep(&(struct timespec){ 0, 60000000 }, NULL);
    return syscall(SYS_pread64, fd, buf, n, at);
}
