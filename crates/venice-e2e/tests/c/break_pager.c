/* Unmaps a page of the pager's staging area by a bare system call: an invariant of the pager breaks. With the
   argument "daemon", standard error is another file by then. */
#include "check.h"
#include <fcntl.h>
#include <sys/syscall.h>

int main(int argc, char **argv)
{
	char line[512], flags[512];
	unsigned long first, last, start = 0, end = 0, from = 0, to = 0;
	if (argc > 1 && strcmp(argv[1], "daemon") == 0)
		dup2(open("/dev/null", O_WRONLY), 2);
	FILE *maps = fopen("/proc/self/smaps", "r");
	must(maps != NULL);
	while (fgets(line, sizeof line, maps)) {
		if (sscanf(line, "%lx-%lx ", &first, &last) == 2)
			start = first, end = last;
		/* Served by the pager, and mapped as the pager maps its own memory. */
		if (sscanf(line, "VmFlags: %511[^\n]", flags) == 1 && strstr(flags, "um ")
		    && strstr(flags, "nr ") && end - start > to - from)
			from = start, to = end;
	}
	must(from != 0);
	/* An empty frame, before anything is evicted. */
	must(bare_call(SYS_munmap, from + 5 * PAGE, PAGE, 0, 0, 0, 0) == 0);
	char *base = map(32 * MIB);
	for (uint64_t generation = 1;; generation++)
		write_pages(base, 0, 32 * 256, generation);
}
