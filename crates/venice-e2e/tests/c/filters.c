/* The program filters its system calls: the filter judges its own calls, and no others. */
#include "check.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

enum { PAGES = 48 * 256 };
static char *base;

static void *nothing(void *arg)
{
	return arg;
}

/* Denies calls that the program does not make, and the pager does. And mincore, which both make. */
static struct sock_filter *filter(unsigned denial, unsigned short *len)
{
	static struct sock_filter steps[16];
	struct sock_filter with[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ioctl, 3, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pread64, 2, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mincore, 2, 0),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
		BPF_STMT(BPF_RET | BPF_K, denial),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EACCES),
	};
	memcpy(steps, with, sizeof with);
	*len = sizeof with / sizeof *with;
	return steps;
}

static void use(void)
{
	unsigned char seen[1];
	must(mincore(base, PAGE, seen) == -1 && errno == EACCES);
	check_pages(base, 0, PAGES, 1);
	push_out();
	check_pages(base, 0, PAGES, 1);
	pthread_t thread;
	must(pthread_create(&thread, NULL, nothing, NULL) == 0 && pthread_join(thread, NULL) == 0);
	pid_t child = fork();
	must(child >= 0);
	if (child == 0) {
		check_pages(base, 0, PAGES, 1);
		write_pages(base, 0, PAGES, 2);
		push_out();
		check_pages(base, 0, PAGES, 2);
		_exit(0);
	}
	join(child);
}

static void in_child(unsigned denial, unsigned flags, int by_prctl)
{
	pid_t child = fork();
	must(child >= 0);
	if (child == 0) {
		struct sock_fprog program;
		program.filter = filter(denial, &program.len);
		must(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
		if (by_prctl)
			must(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
		else
			must(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program) == 0);
		use();
		_exit(0);
	}
	join(child);
}

/* Only reads, writes and the end of the thread are allowed. */
static void strict(void)
{
	pid_t child = fork();
	must(child >= 0);
	if (child == 0) {
		must(prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) == 0);
		check_pages(base, 0, PAGES, 1);
		write_pages(base, 0, PAGES, 2);
		check_pages(base, 0, PAGES, 2);
		syscall(SYS_exit, 7);
	}
	int status;
	must(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
}

int main(void)
{
	base = map(PAGES * PAGE);
	write_pages(base, 0, PAGES, 1);
	push_out();
	must(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, NULL) == -1);
	in_child(SECCOMP_RET_ERRNO | EPERM, 0, 1);
	in_child(SECCOMP_RET_ERRNO | EPERM, SECCOMP_FILTER_FLAG_TSYNC, 0);
	in_child(SECCOMP_RET_KILL_PROCESS, 0, 0);
	in_child(SECCOMP_RET_KILL_PROCESS, SECCOMP_FILTER_FLAG_TSYNC, 0);
	strict();
	check_pages(base, 0, PAGES, 1);
	puts("filters: kept");
	return 0;
}
