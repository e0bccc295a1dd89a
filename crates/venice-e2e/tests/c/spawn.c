/* Children by posix_spawn, vfork, system and popen; exec of oneself. */
#include "check.h"
#include <spawn.h>

extern char **environ;
enum { PAGES = 48 * 256 };

static void use_memory_as_child(void)
{
	void *own = map(32 * MIB);
	write_pages(own, 0, 32 * MIB / PAGE, 3);
	check_pages(own, 0, 32 * MIB / PAGE, 3);
	puts("executed: memory of its own");
	exit(7);
}

static void expect_status(pid_t child, int code)
{
	int status;
	must(waitpid(child, &status, 0) == child);
	if (!WIFEXITED(status) || WEXITSTATUS(status) != code)
		die("status %x instead of exit %d", status, code);
}

int main(int argc, char **argv)
{
	if (argc > 1)
		use_memory_as_child();
	void *base = map(PAGES * PAGE);
	write_pages(base, 0, PAGES, 1);
	setvbuf(stdout, NULL, _IONBF, 0);

	/* Arguments that lie in far memory. */
	char **args = (char **)map(PAGE);
	char *word = (char *)map(PAGE);
	strcpy(word, "echo spawned; exit 3");
	args[0] = "sh", args[1] = "-c", args[2] = word, args[3] = NULL;
	push_out();
	pid_t child;
	must(posix_spawn(&child, "/bin/sh", NULL, NULL, args, environ) == 0);
	expect_status(child, 3);

	child = vfork();
	if (child == 0) {
		execl("/proc/self/exe", argv[0], "child", (char *)NULL);
		_exit(99);
	}
	must(child > 0);
	expect_status(child, 7);
	child = vfork();
	if (child == 0)
		_exit(5);
	expect_status(child, 5);
	child = vfork();
	if (child == 0) {
		execl("/nonexistent", "nonexistent", (char *)NULL);
		_exit(98);
	}
	expect_status(child, 98);

	must(WEXITSTATUS(system("echo by system; exit 4")) == 4);
	FILE *pipe = popen("echo by popen", "r");
	char line[64];
	must(pipe && fgets(line, sizeof line, pipe));
	printf("%s", line);
	must(pclose(pipe) == 0);

	child = fork();
	must(child >= 0);
	if (child == 0) {
		check_pages(base, 0, PAGES, 1);
		execl("/proc/self/exe", argv[0], "child", (char *)NULL);
		_exit(97);
	}
	expect_status(child, 7);
	check_pages(base, 0, PAGES, 1);
	puts("spawn: all children right");
	return 0;
}
