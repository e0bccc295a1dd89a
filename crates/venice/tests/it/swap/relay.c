/* A static program whose processes never stay, but for the first: each forks two and ends, so that a
 * list of them is always late. The run lasts as long as the first, which reaps them: the machine's init may not.
 *
 *   relay PROCESSES SECONDS    says "running"; at most so many at a time, for so long
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    int count = atoi(argv[1]);
    time_t end = time(NULL) + atol(argv[2]);
    /* The user's other processes count as well. */
    struct rlimit most = {.rlim_cur = 4096, .rlim_max = 4096};
    setrlimit(RLIMIT_NPROC, &most);
    signal(SIGCHLD, SIG_IGN);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    puts("running");
    fflush(stdout);
    int i = 0;
    while (i < count && fork() != 0) i++;
    while (i == count && time(NULL) < end) sleep(1);
    while (time(NULL) < end) {
        pid_t child = fork();
        if (child > 0) {
            fork();
            _exit(0);
        }
        if (child < 0) usleep(200);
    }
    return 0;
}
