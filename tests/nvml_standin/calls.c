/* The functions of libnvidia-ml.so.1 that a monitor calls, answered from the script.
 *
 * DRIVER is the branch that is imitated: functions that came later are missing from the library,
 * functions that a later one dropped are missing from that.
 */
#define _GNU_SOURCE
#include "nvml_standin.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef DRIVER
#define DRIVER 580
#endif

static int attached;

static ret_t unsigned_of(device_t device, const char *name, unsigned *out) {
    answer_t answer;
    ret_t code = ask(device, name, &answer);
    /* Through a wider type: -2 and 4294967295 are both written into 32 bits. */
    if (code == OK) *out = (unsigned)(long long)answer.number[0];
    return code;
}

static ret_t long_of(device_t device, const char *name, unsigned long long *out) {
    answer_t answer;
    ret_t code = ask(device, name, &answer);
    if (code == OK)
        /* Beyond 2^53 a double is not exact: blanks such as 2^64-1 come as text. */
        *out = strtoull(answer.text, NULL, 10);
    return code;
}

static ret_t text_of(device_t device, const char *name, char *out, unsigned size) {
    answer_t answer;
    ret_t code = ask(device, name, &answer);
    if (code == OK) snprintf(out, size, "%s", answer.text);
    return code;
}

/* ---- the library as a whole ---- */

static ret_t attach(void) {
    answer_t answer;
    ret_t code = ask_system("nvmlInit", &answer);
    if (code == NOT_SUPPORTED) code = OK;
    if (code == OK) attached++;
    note(code == OK ? "init" : "init-failed");
    return code;
}

ret_t nvmlInitWithFlags(unsigned flags) { return flags ? INVALID_ARGUMENT : attach(); }
ret_t nvmlInit_v2(void) { return attach(); }

ret_t nvmlShutdown(void) {
    if (attached == 0) return UNINITIALIZED;
    attached--;
    note("shutdown");
    return OK;
}

const char *nvmlErrorString(ret_t code) {
    static char text[32];
    snprintf(text, sizeof text, "error %d", code);
    return text;
}

static ret_t system_text(const char *name, char *out, unsigned size, int needs_driver) {
    answer_t answer;
    if (needs_driver && attached == 0) return UNINITIALIZED;
    ret_t code = ask_system(name, &answer);
    if (code == OK) snprintf(out, size, "%s", answer.text);
    return code;
}

ret_t nvmlSystemGetDriverVersion(char *out, unsigned size) {
    return system_text("nvmlSystemGetDriverVersion", out, size, 1);
}
ret_t nvmlSystemGetNVMLVersion(char *out, unsigned size) {
    return system_text("nvmlSystemGetNVMLVersion", out, size, 0);
}

ret_t nvmlDeviceGetCount_v2(unsigned *out) {
    answer_t answer;
    if (attached == 0) return UNINITIALIZED;
    ret_t code = ask_system("nvmlDeviceGetCount", &answer);
    if (code == OK) *out = (unsigned)answer.number[0];
    return code;
}

/* The script may say that index 0 is another device than the first: "-.index.0 3". */
ret_t nvmlDeviceGetHandleByIndex_v2(unsigned index, device_t *out) {
    answer_t answer;
    char key[32], text[32];
    if (attached == 0) return UNINITIALIZED;
    snprintf(key, sizeof key, "-.index.%u", index);
    int gpu = fact(key, text, sizeof text) ? atoi(text) : (int)index;
    *out = device_of(gpu, -1);
    ret_t code = ask(*out, "nvmlDeviceGetHandleByIndex", &answer);
    return code == NOT_SUPPORTED ? OK : code;
}

/* ---- one number, one text ---- */

#define TEXT_CALL(NAME)                                       \
    ret_t NAME(device_t device, char *out, unsigned size) {   \
        return text_of(device, #NAME, out, size);             \
    }
#define UNSIGNED_CALL(NAME)                                   \
    ret_t NAME(device_t device, unsigned *out) {              \
        return unsigned_of(device, #NAME, out);               \
    }
#define UNSIGNED_CALL_OF(NAME)                                \
    ret_t NAME(device_t device, unsigned which, unsigned *out) { \
        char name[96];                                        \
        snprintf(name, sizeof name, "%s.%u", #NAME, which);   \
        return unsigned_of(device, name, out);                \
    }
#define LONG_CALL(NAME)                                       \
    ret_t NAME(device_t device, unsigned long long *out) {    \
        return long_of(device, #NAME, out);                   \
    }

TEXT_CALL(nvmlDeviceGetUUID)
TEXT_CALL(nvmlDeviceGetName)
TEXT_CALL(nvmlDeviceGetSerial)
TEXT_CALL(nvmlDeviceGetVbiosVersion)
UNSIGNED_CALL(nvmlDeviceGetPowerUsage)
UNSIGNED_CALL(nvmlDeviceGetEnforcedPowerLimit)
UNSIGNED_CALL(nvmlDeviceGetPowerManagementDefaultLimit)
UNSIGNED_CALL(nvmlDeviceGetFanSpeed)
UNSIGNED_CALL(nvmlDeviceGetCurrPcieLinkGeneration)
UNSIGNED_CALL(nvmlDeviceGetCurrPcieLinkWidth)
UNSIGNED_CALL(nvmlDeviceGetMaxPcieLinkGeneration)
UNSIGNED_CALL(nvmlDeviceGetMaxPcieLinkWidth)
UNSIGNED_CALL(nvmlDeviceGetPcieReplayCounter)
UNSIGNED_CALL(nvmlDeviceGetPerformanceState)
UNSIGNED_CALL(nvmlDeviceGetRetiredPagesPendingStatus)
UNSIGNED_CALL(nvmlDeviceGetPersistenceMode)
UNSIGNED_CALL(nvmlDeviceGetMaxMigDeviceCount)
UNSIGNED_CALL(nvmlDeviceGetGpuInstanceId)
UNSIGNED_CALL_OF(nvmlDeviceGetTemperatureThreshold)
UNSIGNED_CALL_OF(nvmlDeviceGetClockInfo)
UNSIGNED_CALL_OF(nvmlDeviceGetMaxClockInfo)
UNSIGNED_CALL_OF(nvmlDeviceGetNvLinkState)
LONG_CALL(nvmlDeviceGetTotalEnergyConsumption)
LONG_CALL(nvmlDeviceGetSupportedEventTypes)

#if DRIVER >= 535
LONG_CALL(nvmlDeviceGetCurrentClocksEventReasons)
#endif
#if DRIVER < 700
LONG_CALL(nvmlDeviceGetCurrentClocksThrottleReasons)
UNSIGNED_CALL_OF(nvmlDeviceGetTemperature)
#endif

/* The call that a monitor must not make: it takes 20 ms. */
ret_t nvmlDeviceGetPcieThroughput(device_t device, unsigned which, unsigned *out) {
    (void)device, (void)which;
    note("pcie-throughput");
    pause_ms(20);
    *out = 0;
    return OK;
}

/* ---- structures and several results ---- */

typedef struct {
    unsigned version, second;
    int value;
} versioned_t;

#if DRIVER >= 570
ret_t nvmlDeviceGetTemperatureV(device_t device, versioned_t *inout) {
    char name[64];
    snprintf(name, sizeof name, "nvmlDeviceGetTemperature.%u", inout->second);
    return unsigned_of(device, name, (unsigned *)&inout->value);
}

ret_t nvmlDeviceGetMarginTemperature(device_t device, versioned_t *inout) {
    return unsigned_of(device, "nvmlDeviceGetMarginTemperature", &inout->second);
}

ret_t nvmlDeviceGetFanSpeedRPM(device_t device, unsigned *version_fan_speed) {
    return unsigned_of(device, "nvmlDeviceGetFanSpeedRPM", &version_fan_speed[2]);
}

typedef struct {
    unsigned version;
    unsigned long long counts[11];
    unsigned exceeded;
} sram_t;

ret_t nvmlDeviceGetSramEccErrorStatus(device_t device, sram_t *out) {
    answer_t answer;
    ret_t code = ask(device, "nvmlDeviceGetSramEccErrorStatus", &answer);
    if (code != OK) return code;
    for (int i = 0; i < 11; i++) out->counts[i] = (unsigned long long)answer.number[i];
    out->exceeded = (unsigned)answer.number[11];
    return OK;
}
#endif

static ret_t unsigneds(device_t device, const char *name, unsigned **outs, int count) {
    answer_t answer;
    ret_t code = ask(device, name, &answer);
    for (int i = 0; code == OK && i < count; i++)
        *outs[i] = i < answer.count ? (unsigned)(long long)answer.number[i] : 0;
    return code;
}

ret_t nvmlDeviceGetUtilizationRates(device_t device, unsigned out[2]) {
    unsigned *outs[] = {&out[0], &out[1]};
    return unsigneds(device, "nvmlDeviceGetUtilizationRates", outs, 2);
}
ret_t nvmlDeviceGetEncoderUtilization(device_t device, unsigned *share, unsigned *period) {
    unsigned *outs[] = {share, period};
    return unsigneds(device, "nvmlDeviceGetEncoderUtilization", outs, 2);
}
ret_t nvmlDeviceGetDecoderUtilization(device_t device, unsigned *share, unsigned *period) {
    unsigned *outs[] = {share, period};
    return unsigneds(device, "nvmlDeviceGetDecoderUtilization", outs, 2);
}
ret_t nvmlDeviceGetMigMode(device_t device, unsigned *current, unsigned *pending) {
    unsigned *outs[] = {current, pending};
    return unsigneds(device, "nvmlDeviceGetMigMode", outs, 2);
}
ret_t nvmlDeviceGetRemappedRows(device_t device, unsigned *corrected, unsigned *uncorrected,
                                unsigned *pending, unsigned *failed) {
    unsigned *outs[] = {corrected, uncorrected, pending, failed};
    return unsigneds(device, "nvmlDeviceGetRemappedRows", outs, 4);
}
ret_t nvmlDeviceGetRowRemapperHistogram(device_t device, unsigned out[5]) {
    unsigned *outs[] = {&out[0], &out[1], &out[2], &out[3], &out[4]};
    return unsigneds(device, "nvmlDeviceGetRowRemapperHistogram", outs, 5);
}

/* total free used / version total reserved free used; the script: total free used [reserved] */
ret_t nvmlDeviceGetMemoryInfo(device_t device, unsigned long long out[3]) {
    answer_t answer;
    ret_t code = ask(device, "nvmlDeviceGetMemoryInfo", &answer);
    for (int i = 0; code == OK && i < 3; i++) out[i] = (unsigned long long)answer.number[i];
    /* The older call counts the driver's own share as used. */
    if (code == OK && answer.count > 3) out[2] += (unsigned long long)answer.number[3];
    return code;
}
#if DRIVER >= 510
ret_t nvmlDeviceGetMemoryInfo_v2(device_t device, unsigned long long out[5]) {
    answer_t answer;
    ret_t code = ask(device, "nvmlDeviceGetMemoryInfo_v2", &answer);
    if (code == NOT_SUPPORTED) code = ask(device, "nvmlDeviceGetMemoryInfo", &answer);
    if (code != OK) return code;
    out[1] = (unsigned long long)answer.number[0];
    out[2] = answer.count > 3 ? (unsigned long long)answer.number[3] : 0;
    out[3] = (unsigned long long)answer.number[1];
    out[4] = (unsigned long long)answer.number[2];
    return OK;
}
#endif
ret_t nvmlDeviceGetBAR1MemoryInfo(device_t device, unsigned long long out[3]) {
    answer_t answer;
    ret_t code = ask(device, "nvmlDeviceGetBAR1MemoryInfo", &answer);
    for (int i = 0; code == OK && i < 3; i++) out[i] = (unsigned long long)answer.number[i];
    return code;
}

ret_t nvmlDeviceGetTotalEccErrors(device_t device, unsigned type, unsigned counter,
                                  unsigned long long *out) {
    char name[64];
    snprintf(name, sizeof name, "nvmlDeviceGetTotalEccErrors.%u.%u", type, counter);
    return long_of(device, name, out);
}
ret_t nvmlDeviceGetMemoryErrorCounter(device_t device, unsigned type, unsigned counter,
                                      unsigned location, unsigned long long *out) {
    char name[80];
    snprintf(name, sizeof name, "nvmlDeviceGetMemoryErrorCounter.%u.%u.%u", type, counter,
             location);
    return long_of(device, name, out);
}

ret_t nvmlDeviceGetRetiredPages(device_t device, unsigned cause, unsigned *count,
                                unsigned long long *pages) {
    answer_t answer;
    char name[64];
    snprintf(name, sizeof name, "nvmlDeviceGetRetiredPages.%u", cause);
    ret_t code = ask(device, name, &answer);
    if (code != OK) return code;
    unsigned found = (unsigned)answer.number[0], room = *count;
    *count = found;
    if (found > room) return INSUFFICIENT_SIZE;
    for (unsigned i = 0; pages != NULL && i < found; i++) pages[i] = 0x1000ull * (i + 1);
    return OK;
}

typedef struct {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char bus_id[32];
} pci_t;

ret_t nvmlDeviceGetPciInfo_v3(device_t device, pci_t *out) {
    memset(out, 0, sizeof *out);
    return text_of(device, "nvmlDeviceGetPciInfo", out->bus_id, sizeof out->bus_id);
}

/* ---- MIG ---- */

ret_t nvmlDeviceGetMigDeviceHandleByIndex(device_t device, unsigned index, device_t *out) {
    char key[64], text[96];
    snprintf(key, sizeof key, "%d/%u.nvmlDeviceGetUUID", gpu_of(device), index);
    if (index >= 16 || !fact(key, text, sizeof text)) return NOT_FOUND;
    *out = device_of(gpu_of(device), (int)index);
    return OK;
}

ret_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device_t instance, device_t *out) {
    *out = device_of(gpu_of(instance), -1);
    return OK;
}

/* ---- field values and sample buffers ---- */

typedef union {
    double d;
    unsigned ui;
    unsigned long long ull;
    long long sll;
    int si;
} value_t;

typedef struct {
    uint32_t id, scope;
    int64_t timestamp, latency_us;
    unsigned type;
    ret_t code;
    value_t value;
} field_t;

enum { DOUBLE = 0, UNSIGNED = 1, UNSIGNED_LONG_LONG = 3, SIGNED = 5 };

static void set_value(value_t *value, unsigned *type, const char *text) {
    double number = strtod(text, NULL);
    memset(value, 0, sizeof *value);
    if (strchr(text, '.') != NULL) {
        *type = DOUBLE;
        value->d = number;
    } else if (number < 0) {
        *type = SIGNED;
        value->si = (int)number;
    } else {
        *type = UNSIGNED_LONG_LONG;
        value->ull = strtoull(text, NULL, 10);
    }
}

ret_t nvmlDeviceGetFieldValues(device_t device, int count, field_t *fields) {
    answer_t answer;
    ret_t whole = ask(device, "nvmlDeviceGetFieldValues", &answer);
    if (whole != OK && whole != NOT_SUPPORTED) return whole;
    for (int i = 0; i < count; i++) {
        char name[48];
        double begun = seconds();
        if (fields[i].scope != 0)
            snprintf(name, sizeof name, "field.%u.%u", fields[i].id, fields[i].scope);
        else
            snprintf(name, sizeof name, "field.%u", fields[i].id);
        fields[i].code = ask(device, name, &answer);
        fields[i].timestamp = (int64_t)(seconds() * 1e6);
        fields[i].latency_us = (int64_t)((seconds() - begun) * 1e6);
        if (fields[i].code == OK) set_value(&fields[i].value, &fields[i].type, answer.text);
        /* An old driver does not know the number at all. */
        if (fields[i].code == NOT_SUPPORTED && DRIVER < 535) fields[i].code = INVALID_ARGUMENT;
    }
    return OK;
}

typedef struct {
    unsigned long long timestamp;
    value_t value;
} sample_t;

/* The script: numbers, oldest first; the newest was taken now, the others 20 ms apart. */
ret_t nvmlDeviceGetSamples(device_t device, unsigned kind, unsigned long long since,
                           unsigned *type, unsigned *count, sample_t *samples) {
    answer_t answer;
    char name[48];
    snprintf(name, sizeof name, "nvmlDeviceGetSamples.%u", kind);
    ret_t code = ask(device, name, &answer);
    if (code != OK) return code;
    unsigned long long now = (unsigned long long)(seconds() * 1e6);
    unsigned found = 0;
    for (int i = 0; i < answer.count; i++) {
        unsigned long long at = now - (unsigned long long)(answer.count - 1 - i) * 20000ull;
        if (at <= since) continue;
        if (samples != NULL && found < *count) {
            samples[found].timestamp = at;
            samples[found].value.ull = 0;
            samples[found].value.ui = (unsigned)answer.number[i];
        }
        found++;
    }
    *type = UNSIGNED;
    *count = found;
    return found == 0 ? NOT_FOUND : OK;
}

/* ---- processes ---- */

typedef struct {
    unsigned pid;
    unsigned long long memory;
    unsigned gpu_instance, compute_instance;
} process_t;

/* What the first R535 drivers wrote under the same name: 32 bytes instead of 24. */
typedef struct {
    process_t known;
    unsigned long long protected_memory;
} long_process_t;

/* The script: pid memory pid memory ... The key "-.process_layout 535" sets the trap. */
static ret_t processes(device_t device, const char *name, unsigned *count, char *out) {
    answer_t answer;
    char text[16];
    ret_t code = ask(device, name, &answer);
    if (code == NOT_SUPPORTED) { /* nobody computes */
        *count = 0;
        return OK;
    }
    if (code != OK) return code;
    unsigned found = (unsigned)answer.count / 2, room = *count;
    *count = found;
    if (found > room) return INSUFFICIENT_SIZE;
    size_t step = fact("-.process_layout", text, sizeof text) ? sizeof(long_process_t)
                                                              : sizeof(process_t);
    for (unsigned i = 0; out != NULL && i < found; i++) {
        process_t entry = {(unsigned)answer.number[2 * i], 0, 0xFFFFFFFFu, 0xFFFFFFFFu};
        entry.memory = answer.number[2 * i + 1] < 0
                           ? ~0ull /* "not available", as in a container */
                           : (unsigned long long)answer.number[2 * i + 1];
        memset(out + i * step, 0, step);
        memcpy(out + i * step, &entry, sizeof entry);
    }
    return OK;
}

#define PROCESS_CALL(NAME)                                       \
    ret_t NAME##_v3(device_t device, unsigned *count, char *out) { \
        return processes(device, #NAME, count, out);             \
    }
PROCESS_CALL(nvmlDeviceGetComputeRunningProcesses)
PROCESS_CALL(nvmlDeviceGetGraphicsRunningProcesses)
PROCESS_CALL(nvmlDeviceGetMPSComputeRunningProcesses)

/* ---- events ---- */

typedef struct {
    unsigned long long wanted[64];
    unsigned served;
} event_set_t;

typedef struct {
    device_t device;
    unsigned long long type, data;
    unsigned gpu_instance, compute_instance;
} event_t;

/* Events of the script that lie before the first registration do not arrive. */
static unsigned last_event(void) {
    char text[32];
    return fact("-.events", text, sizeof text) ? (unsigned)atoi(text) : 0;
}

ret_t nvmlEventSetCreate(event_set_t **out) {
    *out = calloc(1, sizeof **out);
    (*out)->served = last_event();
    return OK;
}

ret_t nvmlDeviceRegisterEvents(device_t device, unsigned long long types, event_set_t *set) {
    answer_t answer;
    int gpu = gpu_of(device);
    ret_t code = ask(device, "nvmlDeviceRegisterEvents", &answer);
    if (code != OK && code != NOT_SUPPORTED) return code;
    if (gpu < 0 || gpu >= 64) return INVALID_ARGUMENT;
    set->wanted[gpu] |= types;
    note("listens");
    return OK;
}

/* The script: "-.events 2" is how many there are, "-.event.2 gpu type data" is the second. */
ret_t nvmlEventSetWait_v2(event_set_t *set, event_t *out, unsigned timeout_ms) {
    double until = seconds() + timeout_ms / 1e3;
    int changes = watch_script();
    answer_t answer;
    do {
        ret_t code = ask_system("nvmlEventSetWait", &answer);
        if (code != OK && code != NOT_SUPPORTED) return code;
        while (set->served < last_event()) {
            char key[32], text[96];
            int gpu;
            unsigned long long type, data;
            snprintf(key, sizeof key, "-.event.%u", ++set->served);
            if (!fact(key, text, sizeof text)) continue;
            if (sscanf(text, "%d %llu %llu", &gpu, &type, &data) != 3) continue;
            if (gpu < 0 || gpu >= 64 || !(set->wanted[gpu] & type)) continue;
            *out = (event_t){device_of(gpu, -1), type, data, 0xFFFFFFFFu, 0xFFFFFFFFu};
            unwatch_script(changes);
            return OK;
        }
    } while (await_change(changes, until));
    unwatch_script(changes);
    return TIMEOUT;
}

ret_t nvmlEventSetFree(event_set_t *set) {
    free(set);
    return OK;
}

/* ---- GPM ---- */

#if DRIVER >= 520
typedef struct {
    device_t device;
    int gpu_instance;
    double at;
} gpm_sample_t;

typedef struct {
    unsigned id;
    ret_t code;
    double value;
    const char *words[3];
} gpm_metric_t;

typedef struct {
    unsigned version, count;
    gpm_sample_t *first, *second;
    gpm_metric_t metrics[];
} gpm_get_t;

ret_t nvmlGpmQueryDeviceSupport(device_t device, unsigned version_supported[2]) {
    unsigned found = 0;
    ret_t code = unsigned_of(device, "nvmlGpmQueryDeviceSupport", &found);
    if (code == OK) version_supported[1] = found;
    return code;
}

ret_t nvmlGpmSampleAlloc(gpm_sample_t **out) {
    *out = calloc(1, sizeof **out);
    return OK;
}

ret_t nvmlGpmSampleFree(gpm_sample_t *sample) {
    free(sample);
    return OK;
}

static ret_t gpm_sample(device_t device, int instance, gpm_sample_t *sample) {
    answer_t answer;
    ret_t code = ask(device, "nvmlGpmSampleGet", &answer);
    if (code != OK && code != NOT_SUPPORTED) return code;
    *sample = (gpm_sample_t){device, instance, seconds()};
    return OK;
}

ret_t nvmlGpmSampleGet(device_t device, gpm_sample_t *sample) {
    return gpm_sample(device, -1, sample);
}
ret_t nvmlGpmMigSampleGet(device_t device, unsigned instance, gpm_sample_t *sample) {
    return gpm_sample(device, (int)instance, sample);
}

/* The script: "gpm.2" per GPU, "gpm.2.7" for its GPU instance 7. */
ret_t nvmlGpmMetricsGet(gpm_get_t *inout) {
    if (inout->second->at - inout->first->at < 0.05) return INVALID_ARGUMENT;
    for (unsigned i = 0; i < inout->count; i++) {
        gpm_metric_t *metric = &inout->metrics[i];
        answer_t answer;
        char name[48];
        if (inout->second->gpu_instance < 0)
            snprintf(name, sizeof name, "gpm.%u", metric->id);
        else
            snprintf(name, sizeof name, "gpm.%u.%d", metric->id, inout->second->gpu_instance);
        metric->code = ask(inout->second->device, name, &answer);
        if (metric->code == OK) metric->value = answer.number[0];
    }
    return OK;
}
#endif
