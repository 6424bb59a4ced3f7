/* The least that reading through SQLite can cost: step over a query, keep every column as int64.
   Arguments: file, query, number of rows to make room for. Prints the rows read and the seconds taken. */

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* Declared here, so that the header need not be installed. */
int sqlite3_open_v2(const char *, void **, int, const char *);
int sqlite3_prepare_v2(void *, const char *, int, void **, const char **);
int sqlite3_step(void *);
int sqlite3_column_count(void *);
long long sqlite3_column_int64(void *, int);

enum { READ_ONLY = 1, ROW = 100, DONE = 101 };

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    double began = now();
    void *database, *statement;
    if (sqlite3_open_v2(argv[1], &database, READ_ONLY, 0)) return 3;
    if (sqlite3_prepare_v2(database, argv[2], -1, &statement, 0)) return 4;
    long long room = atoll(argv[3]), rows = 0;
    int columns = sqlite3_column_count(statement), state;
    long long *values = malloc(room * columns * sizeof *values);
    if (!values) return 5;
    while ((state = sqlite3_step(statement)) == ROW && rows < room) {
        for (int i = 0; i < columns; i++) values[i * room + rows] = sqlite3_column_int64(statement, i);
        rows++;
    }
    if (state != DONE) return 6;
    printf("%lld %.6f\n", rows, now() - began);
    return 0;
}
