/* mlock and friends: the results are the same as without Venice, and the bytes are right. */
#include "check.h"

int main(void)
{
	char *base = map(24 * MIB);
	write_pages(base, 0, 24 * 256, 1);
	push_out();
	int locked = mlock(base, MIB);
	must(locked == 0 || errno == ENOMEM || errno == EPERM || errno == EAGAIN);
	check_pages(base, 0, 24 * 256, 1);
	push_out();
	check_pages(base, 0, 256, 1);
	write_pages(base, 0, 256, 2);
	must(munlock(base, MIB) == 0);
	push_out();
	check_pages(base, 0, 256, 2);
	check_pages(base, 256, 24 * 256, 1);
	unsigned char seen[256];
	must(mincore(base, MIB, seen) == 0);
	must(msync(base, MIB, MS_ASYNC) == 0);
	must(mprotect(base, MIB, PROT_READ) == 0 && mprotect(base, MIB, PROT_READ | PROT_WRITE) == 0);
	/* Populated from the start, and huge-page sized. */
	char *full = mmap(NULL, 32 * MIB, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	must(full != MAP_FAILED);
	check_zero(full, 32 * MIB);
	write_pages(full, 0, 32 * 256, 3);
	check_pages(full, 0, 32 * 256, 3);
	/* Shared anonymous memory is shared with a child, after any of these calls. */
	char *shared = mmap(NULL, 8 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	must(shared != MAP_FAILED);
	pid_t child = fork();
	must(child >= 0);
	if (child == 0) {
		write_pages(shared, 0, 8 * 256, 5);
		_exit(0);
	}
	join(child);
	check_pages(shared, 0, 8 * 256, 5);
	puts("mlock: bytes kept");
	return 0;
}
