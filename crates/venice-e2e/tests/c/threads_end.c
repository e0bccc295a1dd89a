/* The main thread ends first; signals stay blocked where they are blocked; exec from a thread. */
#include "check.h"
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>

static char *base;
static atomic_int handled;

static void on_signal(int signal)
{
	(void)signal;
	handled++;
}

/* With every thread of the program blocking it, a signal to the process must wait: no thread of
 * Venice may take it. */
static void signals_wait(void)
{
	sigset_t all;
	sigfillset(&all);
	must(sigprocmask(SIG_BLOCK, &all, NULL) == 0);
	signal(SIGUSR2, on_signal);
	for (int i = 0; i < 20; i++) {
		must(kill(getpid(), SIGUSR2) == 0);
		write_pages(base, 0, 4096, i);
		check_pages(base, 0, 4096, i);
		if (handled)
			die("a blocked signal was handled");
		struct timespec soon = { 5, 0 };
		sigset_t one;
		sigemptyset(&one), sigaddset(&one, SIGUSR2);
		must(sigtimedwait(&one, NULL, &soon) == SIGUSR2);
	}
	must(sigprocmask(SIG_UNBLOCK, &all, NULL) == 0);
}

static void *executes(void *none)
{
	(void)none;
	execl("/proc/self/exe", "threads_end", "executed", (char *)NULL);
	_exit(96);
}

static void *outlives(void *main_thread)
{
	must(pthread_join(*(pthread_t *)main_thread, NULL) == 0);
	for (int i = 0; i < 3; i++) {
		write_pages(base, 0, 8192, 40 + i);
		check_pages(base, 0, 8192, 40 + i);
	}
	puts("threads_end: the last one out");
	return NULL;
}

int main(int argc, char **argv)
{
	(void)argv;
	base = map(32 * MIB);
	write_pages(base, 0, 8192, 1);
	check_pages(base, 0, 8192, 1);
	if (argc > 1) {
		puts("executed from a thread");
		return 6;
	}
	signals_wait();
	pid_t child = fork();
	must(child >= 0);
	pthread_t thread;
	if (child == 0) {
		must(pthread_create(&thread, NULL, executes, NULL) == 0);
		pthread_join(thread, NULL);
		_exit(95);
	}
	int status;
	must(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 6);
	static pthread_t me;
	me = pthread_self();
	must(pthread_create(&thread, NULL, outlives, &me) == 0);
	pthread_exit(NULL);
}
