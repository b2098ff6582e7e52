/* The script: reading it, finding answers, hanging. See nvml_standin.h. */
#define _GNU_SOURCE
#include "nvml_standin.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define LOOK_SECONDS 0.001
#define SLOTS 16384 /* a power of two; at most half of them are used */

typedef struct {
    uint32_t hash;
    char *key;
    char *text;
} slot_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static slot_t slots[SLOTS];
static char *content;
static struct stat seen;
static double loaded_at, looked_at;

static uint32_t hash_of(const char *key) {
    uint32_t hash = 2166136261u;
    for (; *key; key++) hash = (hash ^ (unsigned char)*key) * 16777619u;
    return hash ? hash : 1;
}

double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

void pause_ms(long ms) {
    struct timespec length = {ms / 1000, (ms % 1000) * 1000000L};
    nanosleep(&length, NULL);
}

static slot_t *slot_for(const char *key) {
    uint32_t hash = hash_of(key);
    uint32_t place = hash & (SLOTS - 1);
    while (slots[place].hash != 0) {
        if (slots[place].hash == hash && strcmp(slots[place].key, key) == 0) break;
        place = (place + 1) & (SLOTS - 1);
    }
    return &slots[place];
}

static void parse(char *text) {
    memset(slots, 0, sizeof slots);
    for (char *line = strtok(text, "\n"); line != NULL; line = strtok(NULL, "\n")) {
        char *space = strchr(line, ' ');
        if (space == NULL || line[0] == '#') continue;
        *space = 0;
        slot_t *slot = slot_for(line);
        slot->hash = hash_of(line);
        slot->key = line;
        slot->text = space + 1;
    }
}

/* Read the script again if it is another file than last time. The lock is held. */
static void refresh(void) {
    const char *path = getenv("NVML_STANDIN");
    struct stat now;
    double moment = seconds();
    if (loaded_at == 0) loaded_at = moment;
    /* Not for every call: the library shall cost little beside what is measured with it. */
    if (content != NULL && moment - looked_at < LOOK_SECONDS) return;
    looked_at = moment;
    if (path == NULL || stat(path, &now) != 0) return;
    if (content != NULL && now.st_ino == seen.st_ino && now.st_size == seen.st_size &&
        memcmp(&now.st_mtim, &seen.st_mtim, sizeof now.st_mtim) == 0)
        return;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return;
    char *fresh = malloc((size_t)now.st_size + 1);
    ssize_t length = read(file, fresh, (size_t)now.st_size);
    close(file);
    if (length < 0) length = 0;
    fresh[length] = 0;
    free(content);
    content = fresh;
    seen = now;
    parse(content);
}

int fact(const char *key, char *text, size_t size) {
    pthread_mutex_lock(&lock);
    refresh();
    slot_t *slot = slot_for(key);
    int found = slot->hash != 0;
    if (found) snprintf(text, size, "%s", slot->text);
    pthread_mutex_unlock(&lock);
    return found;
}

void note(const char *what) {
    const char *path = getenv("NVML_STANDIN_LOG");
    if (path == NULL) return;
    int file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (file < 0) return;
    dprintf(file, "%s %d\n", what, (int)getpid());
    close(file);
}

int watch_script(void) {
    char folder[4096];
    const char *path = getenv("NVML_STANDIN");
    int watch = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    if (watch < 0 || path == NULL) return watch;
    snprintf(folder, sizeof folder, "%s", path);
    char *slash = strrchr(folder, '/');
    if (slash != NULL) *slash = 0;
    inotify_add_watch(watch, slash == NULL ? "." : folder, IN_MOVED_TO | IN_CLOSE_WRITE);
    pause_ms(2); /* the next look is younger than the watch: no change falls between the two */
    return watch;
}

/* 0 when the time is up. A change that came before the watch is seen by the caller's look. */
int await_change(int watch, double until) {
    char words[4096];
    struct pollfd waited = {watch, POLLIN, 0};
    double left = until - seconds();
    if (left <= 0) return 0;
    if (watch < 0)
        pause_ms(20);
    else if (poll(&waited, 1, (int)(left * 1e3) + 1) > 0)
        while (read(watch, words, sizeof words) > 0) pause_ms(2);
    return 1;
}

void unwatch_script(int watch) {
    if (watch >= 0) close(watch);
}

static int find(const char *scope, const char *name, answer_t *answer) {
    char key[192];
    snprintf(key, sizeof key, "%s.%s", scope, name);
    return fact(key, answer->text, sizeof answer->text);
}

static void numbers(answer_t *answer) {
    char *place = answer->text;
    answer->count = 0;
    while (answer->count < MOST_NUMBERS) {
        char *end;
        double value = strtod(place, &end);
        if (end == place) break;
        answer->number[answer->count++] = value;
        place = end;
    }
}

/* Obey instructions in the text, then read its numbers; -1 asks to look the answer up again. */
static ret_t obey(answer_t *answer) {
    double first, second;
    int used = 0;
    if (answer->text[0] == '!') return atoi(answer->text + 1);
    if (strcmp(answer->text, "hang") == 0) {
        pause_ms(2);
        return -1;
    }
    if (sscanf(answer->text, "slow %lf %n", &first, &used) == 1 && used > 0) {
        pause_ms((long)first);
        memmove(answer->text, answer->text + used, strlen(answer->text + used) + 1);
    }
    if (sscanf(answer->text, "ramp %lf %lf", &first, &second) == 2)
        snprintf(answer->text, sizeof answer->text, "%.0f",
                 first + second * (seconds() - loaded_at));
    numbers(answer);
    return OK;
}

/* The scope of the answers that all GPUs, or all instances, share. */
static const char *everyone(const char *scope) {
    if (strcmp(scope, "-") == 0) return scope;
    return strchr(scope, '/') == NULL ? "*" : "*/*";
}

static ret_t answer_from(const char *scope, const char *name, answer_t *answer) {
    ret_t code;
    do {
        if (strcmp(scope, "-") != 0 && find(scope, "*", answer)) {
            code = obey(answer);
            if (code != OK) continue;
        }
        if (!find(scope, name, answer) && !find(everyone(scope), name, answer))
            return NOT_SUPPORTED;
        code = obey(answer);
    } while (code == -1);
    return code;
}

ret_t ask_system(const char *name, answer_t *answer) { return answer_from("-", name, answer); }

/* A handle is a number: GPU 2 is 0x1003, its MIG instance 4 is 0x2054. Index 0 is not NULL. */
device_t device_of(int gpu, int instance) {
    return (device_t)(uintptr_t)(instance < 0 ? 0x1001 + gpu : 0x2000 + gpu * 0x10 + instance);
}

int gpu_of(device_t device) {
    uintptr_t number = (uintptr_t)device;
    return (int)(number < 0x2000 ? number - 0x1001 : (number - 0x2000) / 0x10);
}

int instance_of(device_t device) {
    uintptr_t number = (uintptr_t)device;
    return number < 0x2000 ? -1 : (int)((number - 0x2000) % 0x10);
}

ret_t ask(device_t device, const char *name, answer_t *answer) {
    char scope[32];
    int instance = instance_of(device);
    if (device == NULL) return INVALID_ARGUMENT;
    snprintf(scope, sizeof scope, "%d", gpu_of(device));
    if (instance >= 0) {
        if (find(scope, "*", answer)) { /* what befell the GPU befell its parts */
            ret_t code = obey(answer);
            if (code > OK) return code;
        }
        snprintf(scope, sizeof scope, "%d/%d", gpu_of(device), instance);
    }
    return answer_from(scope, name, answer);
}
