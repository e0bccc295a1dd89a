/* Address space reserved before any library was initialised, and used later: allocators do so. */
#include "check.h"

enum { LEN = 64 << 20, PAGES = LEN / 4096 };

static char *reserved;

static void reserve(void)
{
	reserved = mmap(NULL, LEN, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

__attribute__((section(".preinit_array"), used)) static void (*early)(void) = reserve;

int main(void)
{
	must(reserved != MAP_FAILED);
	must(mprotect(reserved, LEN, PROT_READ | PROT_WRITE) == 0);
	write_pages(reserved, 0, PAGES, 1);
	check_pages(reserved, 0, PAGES, 1);
	puts("done");
	return 0;
}
