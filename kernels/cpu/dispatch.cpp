// What the loader asks before it binds a variant: which sources the library was built from, and what the processor has.
#include <cstring>

// OCTAVO_SOURCE_HASH is the build script's hash of every source and flag; the marker finds it in the file unloaded.
extern "C" __attribute__((visibility("default"))) const char* octavo_source_hash() {
    return "octavo-source-hash:" OCTAVO_SOURCE_HASH;
}

// 1 if this processor and operating system can run the variant compiled for `instruction_set`.
extern "C" __attribute__((visibility("default"))) int octavo_supports(const char* instruction_set) {
#if defined(__x86_64__)
    if (std::strcmp(instruction_set, "x86-64-v4-bf16") == 0)
        return __builtin_cpu_supports("x86-64-v4") && __builtin_cpu_supports("avx512bf16") &&
               __builtin_cpu_supports("avx512vnni");
    if (std::strcmp(instruction_set, "x86-64-v4") == 0) return __builtin_cpu_supports("x86-64-v4") != 0;
    if (std::strcmp(instruction_set, "x86-64-v3") == 0) return __builtin_cpu_supports("x86-64-v3") != 0;
#endif
    return std::strcmp(instruction_set, "generic") == 0;
}
