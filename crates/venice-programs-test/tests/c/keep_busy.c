/* keep_busy MIB READY STOP [caught]: writes and checks its memory over and over until the file STOP is
 * there. With `caught` it says so itself when a page is lost, and ends with 3. */
#include "check.h"
#include <fcntl.h>
#include <signal.h>

static void on_bus(int signal, siginfo_t *info, void *context)
{
	(void)signal, (void)context;
	char said[] = "a page is lost\n";
	must(info->si_addr && write(1, said, sizeof said - 1) == sizeof said - 1);
	_exit(3);
}

int main(int argc, char **argv)
{
	must(argc == 4 || argc == 5);
	struct sigaction action = { .sa_sigaction = on_bus, .sa_flags = SA_SIGINFO };
	must(argc == 4 || sigaction(SIGBUS, &action, NULL) == 0);
	uint64_t pages = strtoul(argv[1], NULL, 10) * 256, generation = 1;
	char *base = map(pages * PAGE);
	write_pages(base, 0, pages, 1);
	check_pages(base, 0, pages, 1);
	must(close(open(argv[2], O_CREAT | O_WRONLY, 0600)) == 0);
	for (; access(argv[3], F_OK) != 0; generation++) {
		check_pages(base, 0, pages, generation);
		write_pages(base, 0, pages, generation + 1);
	}
	check_pages(base, 0, pages, generation);
	puts("every byte right");
	return 0;
}
