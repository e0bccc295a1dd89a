/* Passes bad pointers to the calls that Venice replaces, and prints how each fails. */
#define _GNU_SOURCE
#include "check.h"
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#define try(call)                                                       \
	do {                                                            \
		errno = 0;                                              \
		long result_ = (long)(call);                            \
		printf("%s: %ld, %s\n", #call, result_, strerror(errno)); \
	} while (0)

/* Where nothing is mapped; the compiler does not know. */
static void *volatile nothing = (void *)16;

/* Pointers that begin in a page, and end beyond it. */
static char *edge;

static void try_limits(void)
{
	struct rlimit limit = { 8ul << 30, 8ul << 30 };
	try(setrlimit(RLIMIT_AS, &limit));
	try(setrlimit(RLIMIT_AS, nothing));
	try(setrlimit(RLIMIT_AS, (void *)(edge - 8)));
	try(getrlimit(RLIMIT_AS, nothing));
	try(prlimit(0, RLIMIT_DATA, nothing, NULL));
	try(prlimit(0, RLIMIT_AS, &limit, nothing));
	try(syscall(SYS_setrlimit, RLIMIT_AS, nothing));
}

static void try_filters(void)
{
	struct sock_filter allow = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	struct sock_fprog bad = { 1, nothing }, cut = { 4, (void *)(edge - sizeof allow) };
	try(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
	try(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, nothing));
	try(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, 0));
	try(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &bad));
	try(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &bad));
	try(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &cut));
	try(prctl(PR_SET_NAME, nothing));
}

static void try_memory(void)
{
	try(memfd_create(nothing, 0));
	try(memfd_create(NULL, 0));
	memcpy(edge - 3, "abc", 3);
	try(memfd_create(edge - 3, 0));
	try(syscall(SYS_memfd_create, nothing, 0));
	try(mprotect(nothing, PAGE, PROT_READ));
	try(munmap(nothing, PAGE));
	try(mremap((void *)PAGE, PAGE, 2 * PAGE, MREMAP_MAYMOVE) == MAP_FAILED);
	try(madvise((void *)PAGE, PAGE, MADV_DONTNEED));
	try(mlock((void *)PAGE, PAGE));
}

static void try_files(void)
{
	struct stat found;
	char *no_program[] = { "none", NULL };
	try(fstatat(AT_FDCWD, nothing, &found, 0));
	try(fstatat(AT_FDCWD, "/proc/self/task", nothing, 0));
	try(statx(AT_FDCWD, nothing, 0, STATX_ALL, (void *)&found));
	try(execve(nothing, no_program, NULL));
	try(execve("/bin/true", nothing, NULL));
	try(sigaction(SIGTERM, (void *)0, NULL));
}

static void try_messages(void)
{
	int ends[2], memory = memfd_create("sent", 0);
	must(memory >= 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
	struct iovec part = { "x", 1 };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };
	try(sendmsg(ends[0], nothing, 0));
	try(sendmsg(ends[0], NULL, 0));
	message.msg_control = nothing, message.msg_controllen = CMSG_SPACE(sizeof(int));
	try(sendmsg(ends[0], &message, 0));
	message.msg_control = edge - 8;
	try(sendmsg(ends[0], &message, 0));
}

int main(void)
{
	char *room = map(2 * PAGE);
	edge = room + PAGE;
	must(munmap(edge, PAGE) == 0);
	try_limits();
	try_memory();
	try_files();
	try_messages();
	try_filters();
	return 0;
}
