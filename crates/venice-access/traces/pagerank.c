/* PageRank on a random graph (R-MAT), for record.sh: pagerank SCALE EDGES-PER-VERTEX ITERATIONS
 *
 * The graph is in compressed rows: of each vertex the sources of its incoming edges. The last iteration
 * is marked for the recorder.
 */
#include "recorded.h"

/* An edge of R-MAT with the probabilities of Graph500, 0.57, 0.19, 0.19 and 0.05, of 256. */
static void draw_edge(int scale, uint32_t *from, uint32_t *to) {
    *from = *to = 0;
    for (int bit = 0; bit < scale; bit++) {
        unsigned part = draw() & 255;
        *from = *from << 1 | (part >= 195);
        *to = *to << 1 | ((part >= 146 && part < 195) || part >= 243);
    }
}

int main(int argc, char **argv) {
    if (argc != 4) {
        fprintf(stderr, "usage: pagerank SCALE EDGES-PER-VERTEX ITERATIONS\n");
        return 2;
    }
    int scale = atoi(argv[1]), iterations = atoi(argv[3]);
    uint32_t vertices = 1u << scale, edges = atof(argv[2]) * vertices;
    volatile uint64_t *marks = map_marks();
    uint32_t(*drawn)[2] = malloc(edges * sizeof *drawn);
    uint64_t *first = calloc(vertices + 2, sizeof *first);
    uint32_t *source = malloc(edges * sizeof *source), *degree = calloc(vertices, sizeof *degree);
    double *rank = malloc(vertices * sizeof *rank), *share = malloc(vertices * sizeof *share);
    for (uint32_t n = 0; n < edges; n++) {
        draw_edge(scale, &drawn[n][0], &drawn[n][1]);
        degree[drawn[n][0]]++;
        first[drawn[n][1] + 2]++;
    }
    for (uint32_t n = 0; n < vertices; n++) {
        first[n + 2] += first[n + 1];
        rank[n] = 1.0 / vertices;
    }
    for (uint32_t n = 0; n < edges; n++)
        source[first[drawn[n][1] + 1]++] = drawn[n][0];
    double total = 0;
    for (int round = 0; round < iterations; round++) {
        if (round == iterations - 1)
            marks[0] = 1;
        total = 0;
        for (uint32_t n = 0; n < vertices; n++)
            share[n] = degree[n] ? rank[n] / degree[n] : 0;
        for (uint32_t n = 0; n < vertices; n++) {
            double sum = 0;
            for (uint64_t edge = first[n]; edge < first[n + 1]; edge++)
                sum += share[source[edge]];
            rank[n] = 0.15 / vertices + 0.85 * sum;
            total += rank[n];
        }
    }
    marks[1] = 1;
    printf("%u vertices, %u edges, sum of ranks %.6f\n", vertices, edges, total);
    return 0;
}
