/* A program with signal handlers of its own, SIGBUS among them, that uses far memory all along. */
#include "check.h"
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>

enum { PAGES = 48 * 256 };
static char *base, *beyond;
static sigjmp_buf back;
static volatile sig_atomic_t caught, last_code;

/* The handler touches far memory too. */
static void use_far_memory(void)
{
	for (int i = 0; i < PAGES; i += 97)
		if (!page_is(base, i, 1))
			die("page %d is wrong in a handler", i);
}

static void on_bus(int signal, siginfo_t *info, void *context)
{
	(void)context;
	must(signal == SIGBUS);
	use_far_memory();
	caught++;
	last_code = info->si_code;
	if (info->si_code > 0) {
		must((char *)info->si_addr == beyond);
		siglongjmp(back, 1);
	}
}

static void on_user(int signal)
{
	(void)signal;
	use_far_memory();
	caught++;
}

static void set(int signal, void *handler, int flags, int block_all)
{
	struct sigaction action = { .sa_flags = flags }, read_back;
	action.sa_handler = handler;
	if (block_all)
		sigfillset(&action.sa_mask);
	must(sigaction(signal, &action, NULL) == 0);
	must(sigaction(signal, NULL, &read_back) == 0);
	must(read_back.sa_handler == handler && (read_back.sa_flags & ~0x04000000) == flags);
}

/* Touches a page beyond the end of its file: that SIGBUS belongs to the program. */
static void touch_beyond(void)
{
	push_out();
	if (sigsetjmp(back, 1) == 0) {
		*(volatile char *)beyond = 1;
		die("nothing was raised");
	}
}

static void *with_all_blocked(void *none)
{
	sigset_t all, now;
	sigfillset(&all);
	must(pthread_sigmask(SIG_SETMASK, &all, NULL) == 0);
	must(sigprocmask(SIG_BLOCK, NULL, &now) == 0);
	must(sigismember(&now, SIGUSR1) && sigismember(&now, SIGTERM));
	check_pages(base, 0, PAGES, 1);
	return none;
}

static int status_of(void (*child_does)(void))
{
	int status;
	pid_t child = fork();
	must(child >= 0);
	if (child == 0) {
		child_does();
		_exit(0);
	}
	must(waitpid(child, &status, 0) == child);
	return status;
}

static void raise_bus(void)
{
	check_pages(base, 0, PAGES, 1);
	raise(SIGBUS);
}

static void touch_with_default(void)
{
	check_pages(base, 0, PAGES, 1);
	*(volatile char *)beyond = 1;
}

int main(void)
{
	base = map(PAGES * PAGE);
	write_pages(base, 0, PAGES, 1);
	FILE *file = tmpfile();
	must(file && ftruncate(fileno(file), PAGE) == 0);
	char *mapped = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fileno(file), 0);
	must(mapped != MAP_FAILED);
	beyond = mapped + PAGE;

	pthread_t thread;
	must(pthread_create(&thread, NULL, with_all_blocked, NULL) == 0);
	must(pthread_join(thread, NULL) == 0);

	stack_t stack = { .ss_sp = map(MIB), .ss_size = MIB };
	must(sigaltstack(&stack, NULL) == 0);
	for (int flags = SA_SIGINFO;; flags = SA_SIGINFO | SA_ONSTACK) {
		set(SIGBUS, on_bus, flags, 1);
		caught = 0;
		for (int i = 0; i < 3; i++)
			touch_beyond();
		must(caught == 3 && last_code > 0);
		must(raise(SIGBUS) == 0 && caught == 4 && last_code <= 0);
		if (flags & SA_ONSTACK)
			break;
	}
	check_pages(base, 0, PAGES, 1);

	set(SIGUSR1, on_user, 0, 1);
	push_out();
	must(raise(SIGUSR1) == 0 && caught == 5);

	must(signal(SIGBUS, SIG_IGN) == (sighandler_t)on_bus);
	must(raise(SIGBUS) == 0 && status_of(raise_bus) == 0);
	must(status_of(touch_with_default) == SIGBUS);
	set(SIGBUS, on_bus, SA_SIGINFO | SA_RESETHAND, 0);
	must(raise(SIGBUS) == 0 && caught == 6);
	must(status_of(raise_bus) == SIGBUS);
	must(status_of(touch_with_default) == SIGBUS);
	check_pages(base, 0, PAGES, 1);
	puts("sigbus: everybody got his own");
	return 0;
}
