/* Fourier transforms on granted accelerators.
 *
 *     venice up --offer node2/accelerator:emulated0=fft@64MB/s --offer node3/accelerator:emulated1=fft@64MB/s
 *     cc pool.c $(pkg-config --cflags --libs venice)
 *     venice get accelerator:fft=2 -- ./a.out
 *     ./a.out 2                                requests two accelerators itself
 *
 * Each task transforms an impulse, of which every result is 1. */
#include <err.h>
#include <stdio.h>
#include <stdlib.h>
#include <venice.h>

enum { TASKS = 8, POINTS = 1024, FLOATS = 2 * POINTS };

static void check(venice_status status, const char *what)
{
    if (status != VENICE_OK)
        errx(1, "%s: %s", what, venice_last_error());
}

/* Opens the accelerators that this program was started with, or requests some. */
static venice_pool *open_pool(const char *count)
{
    venice_rack *rack;
    venice_pool *pool;

    if (!count) {
        check(venice_pool_from_grants(&pool), "pool");
        return pool;
    }
    check(venice_connect(NULL, &rack), "rack");
    check(venice_get_pool(rack, (uint32_t)atoi(count), "fft", NULL, &pool), "pool");
    venice_disconnect(rack);
    return pool;
}

int main(int count, char **words)
{
    static float in[TASKS][FLOATS], out[TASKS][FLOATS];
    venice_task tasks[TASKS];
    uint64_t points = POINTS;
    venice_argument argument = { VENICE_VALUE, &points, sizeof points, 0, 0 };
    venice_executable fft = VENICE_EXECUTABLE;
    venice_pool *pool;

    fft.name = "fft";
    fft.arguments = &argument;
    fft.argument_count = 1;
    for (int task = 0; task < TASKS; task++) {
        in[task][0] = 1;
        tasks[task] = (venice_task){ in[task], sizeof in[task], out[task], sizeof out[task] };
    }
    pool = open_pool(count > 1 ? words[1] : NULL);
    printf("%zu accelerators\n", venice_pool_size(pool));
    check(venice_pool_map(pool, &fft, tasks, TASKS), "map");
    for (int task = 0; task < TASKS; task++)
        for (int at = 0; at < POINTS; at++)
            if (tasks[task].output_bytes != sizeof out[task] || out[task][2 * at] != 1)
                errx(1, "task %d: wrong result %d", task, at);

    fft.name = "crypto";
    if (venice_pool_map(pool, &fft, tasks, 1) != VENICE_TASK_FAILED)
        errx(1, "an unknown function runs");
    printf("%d transforms; then: %s\n", TASKS, venice_last_error());
    venice_free_pool(pool);
    return 0;
}
