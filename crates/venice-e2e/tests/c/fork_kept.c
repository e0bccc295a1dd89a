/* fork_kept READY STOP: a child and its child read what their parent wrote once the file STOP is there,
 * and write and read their own after it. READY is made when all of them are there. */
#include "check.h"
#include <fcntl.h>
#include <time.h>

enum { PAGES = 64 * 256 };

static void wait_for_file(const char *path)
{
	struct timespec look = { .tv_nsec = 10000000 };
	while (access(path, F_OK) != 0)
		nanosleep(&look, NULL);
}

static void read_and_write(void *base, uint64_t generation)
{
	check_pages(base, 0, PAGES, 1);
	write_pages(base, 0, PAGES / 4, generation);
	check_pages(base, PAGES / 4, PAGES, 1);
	check_pages(base, 0, PAGES / 4, generation);
}

int main(int argc, char **argv)
{
	must(argc == 3);
	void *base = map(PAGES * PAGE);
	write_pages(base, 0, PAGES, 1);
	pid_t child = fork();
	must(child >= 0);
	if (child == 0) {
		pid_t grandchild = fork();
		must(grandchild >= 0);
		if (grandchild == 0) {
			must(close(open(argv[1], O_CREAT | O_WRONLY, 0600)) == 0);
			wait_for_file(argv[2]);
			read_and_write(base, 3);
			_exit(0);
		}
		wait_for_file(argv[2]);
		read_and_write(base, 2);
		join(grandchild);
		_exit(0);
	}
	join(child);
	check_pages(base, 0, PAGES, 1);
	puts("every byte right");
	return 0;
}
