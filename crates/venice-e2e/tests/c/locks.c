/* mlock, mlock2, munlock, mlockall, munlockall and MCL_FUTURE: bytes are kept, and locked memory is
   within the budget or refused with the kernel's error. */
#include "check.h"
#include <sys/resource.h>
#include <sys/syscall.h>

#ifndef MLOCK_ONFAULT
#define MLOCK_ONFAULT 1
#endif

enum { PAGES = 40 * 256 };
static char *base;

/* The pages of a range that are in memory. */
static int present(char *at, size_t len)
{
	static unsigned char seen[65536];
	int count = 0;
	must(mincore(at, len, seen) == 0);
	for (size_t i = 0; i < len / PAGE; i++)
		count += seen[i] & 1;
	return count;
}

static void in_child(uint64_t generation)
{
	pid_t child = fork();
	must(child >= 0);
	if (child == 0) {
		/* It inherits no locks. */
		check_pages(base, 0, PAGES, generation);
		write_pages(base, 0, PAGES, generation + 1);
		push_out();
		check_pages(base, 0, PAGES, generation + 1);
		_exit(0);
	}
	join(child);
	check_pages(base, 0, PAGES, generation);
}

static void ranges(void)
{
	must(mlock(base + 100, 2 * MIB) == 0);
	push_out();
	must(present(base, 2 * MIB) == 512);
	must(mlock2(base + 4 * MIB, MIB, MLOCK_ONFAULT) == 0);
	must(syscall(SYS_mlock, base + 6 * MIB, PAGE) == 0);
	must(mlock(base, 0) == 0);
	must(mlock2(base, PAGE, 64) == -1 && errno == EINVAL);
	must(mlock((void *)PAGE, PAGE) == -1 && errno == ENOMEM);
	must(munlock((void *)PAGE, PAGE) == -1 && errno == ENOMEM);
	must(mlock(base, -PAGE) == -1 && (errno == EINVAL || errno == ENOMEM));
	check_pages(base, 0, PAGES, 1);
	in_child(1);
	/* Locked memory moves, grows and is unmapped. */
	char *small = map(MIB);
	write_pages(small, 0, 256, 7);
	must(mlock(small, MIB) == 0);
	small = mremap(small, MIB, 2 * MIB, MREMAP_MAYMOVE);
	must(small != MAP_FAILED);
	push_out();
	check_pages(small, 0, 256, 7);
	must(munmap(small, 2 * MIB) == 0);
	must(munlock(base, 8 * MIB) == 0);
	push_out();
	check_pages(base, 0, PAGES, 1);
}

/* More than fits: either all of it is locked, or nothing is and the error says so. */
static void too_much(void)
{
	int locked = mlock(base, PAGES * PAGE);
	must(locked == 0 || errno == ENOMEM);
	check_pages(base, 0, PAGES, 1);
	must(munlock(base, PAGES * PAGE) == 0);
	locked = mlockall(MCL_CURRENT);
	must(locked == 0 || errno == ENOMEM);
	check_pages(base, 0, PAGES, 1);
	must(munlockall() == 0);
}

static void everything(void)
{
	must(mlockall(0) == -1 && errno == EINVAL);
	must(mlockall(MCL_ONFAULT) == -1 && errno == EINVAL);
	must(mlockall(64) == -1 && errno == EINVAL);
	must(munmap(base, (PAGES - 512) * PAGE) == 0);
	base += (PAGES - 512) * PAGE;
	must(mlockall(MCL_CURRENT) == 0);
	must(present(base, 2 * MIB) == 512);
	push_out();
	must(present(base, 2 * MIB) == 512);
	for (int i = 0; i < 512; i++)
		must(page_is(base - (PAGES - 512) * PAGE, PAGES - 512 + i, 1));
	must(mlockall(MCL_CURRENT | MCL_ONFAULT) == 0);
	must(munlockall() == 0);
	must(syscall(SYS_mlockall, MCL_FUTURE) == 0);
	char *later = map(MIB);
	must(present(later, MIB) == 256);
	write_pages(later, 0, 256, 3);
	/* A mapping that is too large is made, or refused as too much locked memory. */
	char *large = mmap(NULL, 300 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	must(large != MAP_FAILED || errno == EAGAIN);
	if (large != MAP_FAILED)
		must(munmap(large, 300 * MIB) == 0);
	must(mlockall(MCL_FUTURE | MCL_ONFAULT) == 0);
	char *touched = map(MIB);
	must(present(touched, MIB) == 0);
	write_pages(touched, 0, 256, 4);
	must(munlockall() == 0);
	push_out();
	check_pages(later, 0, 256, 3);
	check_pages(touched, 0, 256, 4);
}

int main(void)
{
	struct rlimit limit = {RLIM_INFINITY, RLIM_INFINITY};
	setrlimit(RLIMIT_MEMLOCK, &limit);
	base = map(PAGES * PAGE);
	write_pages(base, 0, PAGES, 1);
	push_out();
	ranges();
	too_much();
	everything();
	puts("locks: bytes kept");
	return 0;
}
