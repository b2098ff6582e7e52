/* What the stand-in shares between its files: the script and how a call is answered from it.
 *
 * The script is a text file named by the environment variable NVML_STANDIN, read again whenever
 * it changes. A line is a key, one space, and an answer. A key is a scope, a dot and the name of
 * a function (with its arguments behind further dots); a scope is "-" (no device), the index of a
 * GPU ("0"), a MIG instance of it ("0/2"), or "*" (every device). An answer is
 *
 *   numbers or text     what the call returns
 *   !15                 the call fails with this return code
 *   hang                the call returns when the script says something else
 *   slow 300 40         the call takes 300 ms and returns 40
 *   ramp 1000 250       1000, and 250 more for every second since the library was loaded
 *
 * "0.* !15" lets every call on GPU 0 fail. A call that the script does not name fails with 3,
 * "not supported". Calls that attach and detach are written to the file NVML_STANDIN_LOG.
 */
#ifndef NVML_STANDIN_H
#define NVML_STANDIN_H

#include <stddef.h>

typedef void *device_t;
typedef int ret_t;

enum {
    OK = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    TIMEOUT = 10
};

#define MOST_NUMBERS 512

/* Answer to one call: text without its first word where that was an instruction. */
typedef struct {
    char text[4096];
    double number[MOST_NUMBERS];
    int count;
} answer_t;

/* Look up scope.name; wait if it hangs or is slow; return the code that it shall have. */
ret_t ask(device_t device, const char *name, answer_t *answer);
/* The same for calls without a device. */
ret_t ask_system(const char *name, answer_t *answer);
/* Without waiting and without "everything fails": facts of the script itself. 0 if absent. */
int fact(const char *key, char *text, size_t size);
void note(const char *what);
double seconds(void);
void pause_ms(long ms);
/* Wait for a change of the script without looking at it all the time: the real call sleeps. */
int watch_script(void);
int await_change(int watch, double until);
void unwatch_script(int watch);

device_t device_of(int gpu, int instance);
int gpu_of(device_t device);
int instance_of(device_t device);

#endif
