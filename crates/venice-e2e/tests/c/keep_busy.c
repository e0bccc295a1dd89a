/* keep_busy MIB READY STOP [caught|forked|left]: writes and checks its memory over and over until the file
 * STOP is there. With `caught` its handler reports a lost page, and exits with 3; with `forked` a child does
 * the same, starting with its parent's contents, and with `left` the parent ends then. */
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
	int is_caught = argc == 5 && strcmp(argv[4], "caught") == 0;
	int is_left = argc == 5 && strcmp(argv[4], "left") == 0;
	int is_forked = is_left || (argc == 5 && strcmp(argv[4], "forked") == 0);
	must(!is_caught || sigaction(SIGBUS, &action, NULL) == 0);
	uint64_t pages = strtoul(argv[1], NULL, 10) * 256, generation = 1;
	char *base = map(pages * PAGE);
	write_pages(base, 0, pages, 1);
	check_pages(base, 0, pages, 1);
	pid_t child = is_forked ? fork() : -1;
	if (child != 0)
		must(close(open(argv[2], O_CREAT | O_WRONLY, 0600)) == 0);
	if (is_left && child > 0)
		return 0;
	for (; access(argv[3], F_OK) != 0; generation++) {
		check_pages(base, 0, pages, generation);
		write_pages(base, 0, pages, generation + 1);
	}
	check_pages(base, 0, pages, generation);
	int status = 0;
	must(child <= 0 || (waitpid(child, &status, 0) == child && status == 0));
	if (child != 0 || is_left)
		puts("every byte right");
	return 0;
}
