/* A fork beside a second thread; its error is this program's output. */
#include "check.h"
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 64 << 20 };

static void *idle(void *none)
{
	pause();
	return none;
}

int main(void)
{
	unsigned char *at = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	must(at != MAP_FAILED);
	memset(at, 7, BYTES);
	pthread_t thread;
	must(pthread_create(&thread, NULL, idle, NULL) == 0);
	pid_t pid = fork();
	if (pid == 0)
		_exit(at[BYTES - 1] == 7 ? 0 : 1);
	if (pid < 0)
		printf("fork: %s\n", strerror(errno));
	else
		must(waitpid(pid, NULL, 0) == pid);
	must(at[BYTES - 1] == 7);
	return 0;
}
