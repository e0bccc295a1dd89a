/* Limits on memory are the program's: what they leave can be used, what they forbid is refused. */
#include "check.h"
#include <pthread.h>
#include <sys/resource.h>
#include <sys/syscall.h>

static void *nothing(void *arg)
{
	return arg;
}

static void within(int resource, const char *name)
{
	struct rlimit limit, read;
	must(getrlimit(resource, &limit) == 0);
	limit.rlim_cur = 400 * MIB;
	must(setrlimit(resource, &limit) == 0);
	must(getrlimit(resource, &read) == 0 && read.rlim_cur == 400 * MIB);
	must(syscall(SYS_prlimit64, 0, resource, NULL, &read) == 0 && read.rlim_cur == 400 * MIB);
	must(prlimit(0, resource, NULL, &read) == 0 && read.rlim_max == limit.rlim_max);
	char *much = malloc(200 * MIB);
	must(much != NULL);
	write_pages(much, 0, 200 * 256, 1);
	check_pages(much, 0, 200 * 256, 1);
	must(malloc(400 * MIB) == NULL && errno == ENOMEM);
	must(mmap(NULL, 400 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
	     == MAP_FAILED && errno == ENOMEM);
	pthread_t thread;
	must(pthread_create(&thread, NULL, nothing, NULL) == 0 && pthread_join(thread, NULL) == 0);
	pid_t child = fork();
	must(child >= 0);
	if (child == 0) {
		check_pages(much, 0, 200 * 256, 1);
		write_pages(much, 0, 200 * 256, 2);
		check_pages(much, 0, 200 * 256, 2);
		/* The next program has the same limits. */
		if (execl("/bin/sh", "sh", "-c", "ulimit -v; ulimit -d", NULL))
			_exit(1);
	}
	join(child);
	check_pages(much, 0, 200 * 256, 1);
	free(much);
	limit.rlim_cur = limit.rlim_max;
	must(setrlimit(resource, &limit) == 0);
	printf("%s: kept\n", name);
	fflush(stdout);
}

int main(void)
{
	within(RLIMIT_AS, "addresses");
	within(RLIMIT_DATA, "data");
	return 0;
}
