/* A Vulkan driver that is another one (FAULTY_DRIVER_OF), but for calls that are told to fail.

   Built and loaded by tests/backend/faulty_driver.py, which says what fails (`fail`).
   No call that it stands in for has more than six arguments, all of them integers or pointers. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef void (*Function)(void);
typedef Function (*GetAddress)(void *, const char *);
typedef int32_t (*Call)(uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t);

typedef struct {
    const char *name;
    int of_device; /* its first argument is the device */
    Call real;
    atomic_int result;
    atomic_uint failures;
    atomic_uintptr_t device;
} Entry;

static atomic_uintptr_t newest; /* device */

static int32_t call(Entry *entry, uintptr_t a, uintptr_t b, uintptr_t c, uintptr_t d, uintptr_t e,
                    uintptr_t f) {
    int32_t result = entry->result;
    if (result != 0 && (!entry->of_device || entry->device == a)) {
        entry->failures++;
        return result;
    }
    return entry->real(a, b, c, d, e, f);
}

#define FUNCTIONS(X)                                                                              \
    X(vkGetSemaphoreCounterValue, 1) X(vkGetSemaphoreCounterValueKHR, 1) X(vkGetFenceStatus, 1)   \
    X(vkAllocateMemory, 1) X(vkCreateBuffer, 1) X(vkCreateComputePipelines, 1)                    \
    X(vkEndCommandBuffer, 0) X(vkQueueSubmit, 0)

#define ENTRY(name, of_device)                                                                    \
    static Entry entry_##name = {#name, of_device};                                               \
    static int32_t faulty_##name(uintptr_t a, uintptr_t b, uintptr_t c, uintptr_t d, uintptr_t e, \
                                 uintptr_t f) { return call(&entry_##name, a, b, c, d, e, f); }
FUNCTIONS(ENTRY)

static const struct { Entry *entry; Function faulty; } TABLE[] = {
#define ROW(name, of_device) {&entry_##name, (Function)faulty_##name},
    FUNCTIONS(ROW)
};
#define ROWS (sizeof TABLE / sizeof *TABLE)

/* All calls of a name fail from now on for the newest device, by a VkResult; 0 for none. */
void fail(const char *name, int result) {
    for (size_t i = 0; i < ROWS; i++)
        if (strcmp(name, TABLE[i].entry->name) == 0) {
            TABLE[i].entry->device = newest;
            TABLE[i].entry->result = result;
        }
}

/* How many calls of a name have failed so far. */
unsigned failures(const char *name) {
    for (size_t i = 0; i < ROWS; i++)
        if (strcmp(name, TABLE[i].entry->name) == 0)
            return TABLE[i].entry->failures;
    return 0;
}

static void *driver(void) {
    static void *found;
    if (found == NULL)
        found = dlopen(getenv("FAULTY_DRIVER_OF"), RTLD_NOW | RTLD_LOCAL);
    return found;
}

static GetAddress real_device_address;

static Function device_address(void *device, const char *name) {
    Function real = real_device_address(device, name);
    for (size_t i = 0; real != NULL && i < ROWS; i++)
        if (strcmp(name, TABLE[i].entry->name) == 0) {
            TABLE[i].entry->real = (Call)real;
            return TABLE[i].faulty;
        }
    return real;
}

static Call real_create_device;

static int32_t create_device(uintptr_t adapter, uintptr_t given, uintptr_t allocator,
                             uintptr_t *made) {
    int32_t result = real_create_device(adapter, given, allocator, (uintptr_t)made, 0, 0);
    if (result == 0)
        newest = *made;
    return result;
}

Function vk_icdGetInstanceProcAddr(void *instance, const char *name) {
    Function real = ((GetAddress)dlsym(driver(), "vk_icdGetInstanceProcAddr"))(instance, name);
    if (real != NULL && strcmp(name, "vkGetDeviceProcAddr") == 0) {
        real_device_address = (GetAddress)real;
        return (Function)device_address;
    }
    if (real != NULL && strcmp(name, "vkCreateDevice") == 0) {
        real_create_device = (Call)real;
        return (Function)create_device;
    }
    return real;
}

Function vk_icdGetPhysicalDeviceProcAddr(void *instance, const char *name) {
    GetAddress real = (GetAddress)dlsym(driver(), "vk_icdGetPhysicalDeviceProcAddr");
    return real == NULL ? NULL : real(instance, name);
}

int32_t vk_icdNegotiateLoaderICDInterfaceVersion(uint32_t *version) {
    return ((int32_t (*)(uint32_t *))dlsym(driver(), "vk_icdNegotiateLoaderICDInterfaceVersion"))(
        version);
}
