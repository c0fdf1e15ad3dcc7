/* Loads the shared library by path, as any language would: no headers, no CUDA, no Python. argv[1]: libfa3.so */
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  void* library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  int (*version)(void) = (int (*)(void))dlsym(library, "fa3_version");
  int (*device_available)(int) = (int (*)(int))dlsym(library, "fa3_device_available");
  const char* (*last_error)(void) = (const char* (*)(void))dlsym(library, "fa3_last_error");
  if (version == NULL || device_available == NULL || last_error == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  const int cpu = device_available(2), cuda = device_available(1);
  printf("fa3 %d, cpu: %d, cuda: %d %s\n", version(), cpu, cuda, last_error());
  if (cpu != 0) return 1;
  return dlclose(library);
}
