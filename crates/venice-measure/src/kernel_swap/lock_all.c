/* Loaded into the servers of a swap device: what serves the kernel's swap must not be swapped. */
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

__attribute__((constructor)) static void lock_all(void)
{
    if (mlockall(MCL_CURRENT | MCL_FUTURE) != 0) {
        perror("cannot lock the memory of a swap server (ulimit -l, CAP_IPC_LOCK)");
        _exit(1);
    }
}
