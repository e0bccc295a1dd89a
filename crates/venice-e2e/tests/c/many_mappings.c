/* 100 000 small mappings, and as many as the kernel allows: no page is lost, and the kernel's errors
   are the program's. Sealed memory and executable mappings too. */
#include "check.h"
#include <sys/personality.h>
#include <sys/syscall.h>

#ifndef SYS_mseal
#define SYS_mseal 462
#endif

enum { COUNT = 100000, PAGES = 24 * 256 };
static char *base;

static void small(void)
{
	static int *all[COUNT];
	for (int i = 0; i < COUNT; i++) {
		all[i] = map(PAGE);
		*all[i] = i;
	}
	push_out();
	for (int i = 0; i < COUNT; i += 2) {
		must(*all[i] == i);
		must(munmap(all[i], PAGE) == 0);
	}
	for (int i = 1; i < COUNT; i += 2)
		must(*all[i] == i && munmap(all[i], PAGE) == 0);
}

static void up_to_the_limit(void)
{
	char *split = map(COUNT * PAGE);
	for (int i = 0; i < COUNT; i++)
		*(int *)(split + i * PAGE) = i;
	int at;
	for (at = 0; at < COUNT && mprotect(split + at * PAGE, PAGE, PROT_READ) == 0; at += 2)
		;
	must(at < COUNT && errno == ENOMEM);
	for (int i = 0; i < COUNT; i++)
		must(*(int *)(split + i * PAGE) == i);
	/* All of it leaves and comes back, with no mapping to spare. */
	for (int i = at + 2; i < COUNT; i++)
		*(int *)(split + i * PAGE) = i + 1;
	check_pages(base, 0, PAGES, 1);
	for (int i = at + 2; i < COUNT; i++)
		must(*(int *)(split + i * PAGE) == i + 1);
	must(munmap(base + MIB, PAGE) == -1 && errno == ENOMEM);
	must(munmap(split, COUNT * PAGE) == 0);
	push_out();
	check_pages(base, 0, PAGES, 1);
}

static void sealed(void)
{
	char *at = map(4 * MIB);
	write_pages(at, 0, 1024, 5);
	if (syscall(SYS_mseal, at, 2 * MIB, 0) != 0) {
		must(errno == ENOSYS);
		return;
	}
	push_out();
	check_pages(at, 0, 1024, 5);
	must(munmap(at, MIB) == -1 && errno == EPERM);
	must(munmap(at + MIB, 2 * MIB) == -1 && errno == EPERM);
	must(mremap(at, MIB, 2 * MIB, MREMAP_MAYMOVE) == MAP_FAILED && errno == EPERM);
	must(mprotect(at, MIB, PROT_READ) == -1 && errno == EPERM);
	must(mmap(at, MIB, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED
	     && errno == EPERM);
	check_pages(at, 0, 1024, 5);
	write_pages(at, 0, 1024, 6);
	push_out();
	check_pages(at, 0, 1024, 6);
	must(munmap(at + 2 * MIB, 2 * MIB) == 0);
}

static void executable(void)
{
	int former = personality(0xffffffff);
	must(personality(former | READ_IMPLIES_EXEC) >= 0);
	char *at = map(4 * MIB);
	write_pages(at, 0, 1024, 7);
	push_out();
	check_pages(at, 0, 1024, 7);
	must(munmap(at, 4 * MIB) == 0);
	must(personality(former) >= 0);
}

int main(void)
{
	base = map(PAGES * PAGE);
	write_pages(base, 0, PAGES, 1);
	small();
	up_to_the_limit();
	sealed();
	executable();
	check_pages(base, 0, PAGES, 1);
	puts("many_mappings: kept");
	return 0;
}
