/* Calls every function of fa3.h from C99: two keys of equal weight, so every row of O is the mean of V's rows. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "fa3/fa3.h"

enum { heads = 2, seqlen = 2, d = 8, count = seqlen * heads * d };

static int failures = 0;

static void expect(int condition, const char* what) {
  if (condition) return;
  fprintf(stderr, "failed: %s (fa3_last_error: \"%s\")\n", what, fa3_last_error());
  ++failures;
}

static fa3_tensor dense(float* data) {
  fa3_tensor tensor;
  memset(&tensor, 0, sizeof tensor);
  tensor.data = data;
  tensor.dtype = FA3_F32;
  tensor.stride[0] = count;
  tensor.stride[1] = heads * d;
  tensor.stride[2] = d;
  tensor.stride[3] = 1;
  return tensor;
}

int main(void) {
  float q[count], k[count], v[count], o[count], lse[heads * seqlen];
  fa3_forward_params params;
  size_t workspace_bytes = 1;
  const char* kernel = NULL;
  int i;

  for (i = 0; i < count; ++i) {
    q[i] = 1.0f;
    k[i] = 0.0f;
    v[i] = i < heads * d ? 1.0f : 2.0f;
    o[i] = -1.0f;
  }

  memset(&params, 0, sizeof params);
  params.struct_size = sizeof params;
  params.api_version = FA3_API_VERSION;
  params.device = FA3_DEVICE_CPU;
  params.batch = 1;
  params.heads = params.kv_heads = heads;
  params.seqlen_q = params.seqlen_k = seqlen;
  params.d = params.d_v = d;
  params.q = dense(q);
  params.k = dense(k);
  params.v = dense(v);
  params.o = dense(o);
  params.lse = lse;
  params.lse_stride[0] = heads * seqlen;
  params.lse_stride[1] = seqlen;
  params.lse_stride[2] = 1;

  expect(fa3_device_available(FA3_DEVICE_CPU) == FA3_OK, "fa3_device_available: the cpu is there");
  expect(fa3_forward_supported(&params) == FA3_OK, "fa3_forward_supported");
  expect(fa3_forward_kernel(&params, &kernel) == FA3_OK && strncmp(kernel, "cpu_", 4) == 0, "fa3_forward_kernel");
  expect(fa3_forward_workspace_size(&params, &workspace_bytes) == FA3_OK, "fa3_forward_workspace_size");
  expect(workspace_bytes == 0, "no workspace on the cpu");
  expect(fa3_forward(&params, NULL, 0, NULL) == FA3_OK, "fa3_forward");
  expect(strcmp(fa3_last_error(), "") == 0, "fa3_last_error: empty after success");
  for (i = 0; i < count; ++i) expect(o[i] == 1.5f, "o is the mean of v");
  for (i = 0; i < heads * seqlen; ++i) expect(fabs(lse[i] - log(2.0)) < 1e-6, "lse = log(2)");

  params.d = 12;
  expect(fa3_forward(&params, NULL, 0, NULL) == FA3_INVALID_ARGUMENT, "d = 12 is refused");
  expect(strstr(fa3_last_error(), "d is 12") != NULL, "fa3_last_error names d and its value");

  /* A device number no machine has: an error in words, with and without a GPU. */
  expect(fa3_init(1 << 20) != FA3_OK, "fa3_init: no such device");
  expect(strcmp(fa3_last_error(), "") != 0, "fa3_init says why");

  expect(strcmp(fa3_status_string(FA3_OK), "ok") == 0, "fa3_status_string");
  expect(fa3_version() == 10000 * FA3_VERSION_MAJOR + 100 * FA3_VERSION_MINOR + FA3_VERSION_PATCH, "fa3_version");
  expect(strlen(fa3_source_hash()) == 64, "fa3_source_hash is a SHA-256 in hex");
  return failures != 0;
}
