/* fork_readers MIB CHILDREN [READY STOP]: children that only read what their parent wrote. All read it
 * once; then, with READY and STOP, READY is made, and they read on until STOP is there. */
#include "check.h"
#include <fcntl.h>

enum { MOST = 256 };

int main(int argc, char **argv)
{
	must(argc == 3 || argc == 5);
	uint64_t pages = strtoul(argv[1], NULL, 10) * 256;
	int children = atoi(argv[2]), ends[2], status;
	must(children <= MOST && pipe(ends) == 0);
	char *base = map(pages * PAGE), has_read = 1;
	write_pages(base, 0, pages, 1);
	for (int child = 0; child < children; child++) {
		if (fork() != 0)
			continue;
		check_pages(base, 0, pages, 1);
		must(write(ends[1], &has_read, 1) == 1);
		while (argc == 5 && access(argv[4], F_OK) != 0) {
			usleep(200000);
			check_pages(base, 0, pages, 1);
		}
		_exit(0);
	}
	for (int child = 0; child < children; child++)
		must(read(ends[0], &has_read, 1) == 1);
	if (argc == 5)
		must(close(open(argv[3], O_CREAT | O_WRONLY, 0600)) == 0);
	for (int child = 0; child < children; child++)
		must(wait(&status) > 0 && status == 0);
	check_pages(base, 0, pages, 1);
	puts("every byte right");
	return 0;
}
