/* Starts itself in every way the C library has, each time with an environment that lacks what was
 * preloaded into this process. Each new program prints its way, a variable of its own, and if the
 * shim is loaded (it is not without Venice). */
#include <fcntl.h>
#include <spawn.h>
#include "check.h"

enum { MANY = 3000 };

extern char **environ;

static char *empty[] = {NULL};
static char *other[] = {"A=1", "LD_PRELOAD=/lib/x86_64-linux-gnu/libutil.so.1", "B=2", NULL};
static char *many[MANY + 1];

static void report(const char *way)
{
	char line[512];
	int shim = 0, util = 0;
	FILE *maps = fopen("/proc/self/maps", "r");
	must(maps != NULL);
	while (fgets(line, sizeof line, maps)) {
		shim |= strstr(line, "libvenice_preload") != NULL;
		util |= strstr(line, "libutil") != NULL;
	}
	const char *own = getenv("A");
	printf("%s: A=%s, %s%s\n", way, own ? own : "", shim ? "shim" : "plain", util ? ", util" : "");
}

#define START(way, call)                                  \
	do {                                              \
		fflush(NULL);                             \
		pid_t child_ = fork();                    \
		must(child_ >= 0);                        \
		if (child_ == 0) {                        \
			char *args[] = {me, way, NULL};   \
			(void)args;                       \
			call;                             \
			die("%s: %s", way, strerror(errno)); \
		}                                         \
		join(child_);                             \
	} while (0)

static void spawn(char *me, char *way, char **environment)
{
	char *args[] = {me, way, NULL};
	pid_t child;
	fflush(NULL);
	must(posix_spawn(&child, me, NULL, NULL, args, environment) == 0);
	join(child);
}

int main(int argc, char **argv)
{
	char *me = argv[0], shell[4200];
	if (argc > 1) {
		report(argv[1]);
		return 0;
	}
	for (int i = 0; i < MANY; i++)
		must(asprintf(&many[i], "V%d=x", i) > 0);
	START("execve", execve(me, args, empty));
	START("execve other", execve(me, args, other));
	START("execve many", execve(me, args, many));
	START("execvpe", execvpe(me, args, other));
	START("execle", execle(me, me, "execle", NULL, empty));
	START("execv", (clearenv(), execv(me, args)));
	START("fexecve", fexecve(open(me, O_RDONLY), args, empty));
	START("execveat", execveat(AT_FDCWD, me, args, empty, 0));
	spawn(me, "spawn", empty);
	spawn(me, "spawn many", many);
	must(unsetenv("LD_PRELOAD") == 0 && setenv("A", "9", 1) == 0);
	snprintf(shell, sizeof shell, "%s system", me);
	fflush(NULL);
	must(system(shell) == 0);
	char *args[] = {me, "x", NULL};
	must(execve("/nonexistent", args, empty) == -1 && errno == ENOENT);
	must(fexecve(-1, args, empty) == -1 && errno == EINVAL);
	return 0;
}
